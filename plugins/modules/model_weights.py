#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_weights
short_description: Install and verify a checkpoint on a node
version_added: 0.1.0
description:
  - Installs a checkpoint in the directory that servers load, or verifies an existing checkpoint.
  - A checkpoint is valid if C(config.json) contains a model of the family and the required format, C(tokenizer.json)
    exists, and every shard of the index exists with the size in its header.
  - A manifest C(.inference-fleet-manifest.json) next to the weights records size, sha256 and time of each file, so
    that later runs detect changed files and repair them if possible.
  - New weights are downloaded to a directory next to the destination, which they replace when complete. A destination
    with another model, or with files of unknown origin, is not changed, and the task fails.
  - Downloads and large copies are background jobs, which survive a lost connection. The module starts the job, waits
    O(wait_s) and returns its progress; repeat the call with the same options to follow the job. The next call restarts
    a killed job, which continues its download.
  - Tasks with the same weights share a job. If a job ended without a waiting task, the next task reports its end.
  - A single run writes to a directory at a time, also if nodes share it. Other runs wait; RV(progress) contains the
    writer. If the file system has no locks, the module warns.
  - Every downloaded file is compared with the hub's size and checksum, and downloaded again if it differs.
  - An existing checkpoint in O(destination) is adopted if one of its shards is as listed. Only differing and missing
    files are downloaded; unlisted files stay.
options:
  source:
    description:
      - Source of the weights.
      - V(standin) is a tiny checkpoint of this collection. It returns valid harmony without meaning, to try a
        deployment without an accelerator.
      - V(path) is a directory of the node, copied only with O(copy).
      - V(huggingface) and V(modelscope) are hubs. Files are downloaded by HTTP; no client library is needed.
    type: str
    choices: [standin, path, huggingface, modelscope]
    required: true
  repo:
    description:
      - Name of the model, such as V(openai/gpt-oss-120b). The directory of another model is an error.
    type: str
    required: true
  revision:
    description:
      - The revision to record; for a hub a commit, a tag or a branch. A branch is resolved until its weights
        are installed; later runs keep its commit, unless O(refresh) is true.
      - By default, for a hub, the collection's pinned commit (of V(openai/gpt-oss-120b)), else V(main) or V(master).
    type: str
  destination:
    description: Absolute path of the directory that servers load.
    type: path
    required: true
  path:
    description: For O(source=path), the directory of the checkpoint. Without O(copy) it is the O(destination).
    type: path
  copy:
    description: For O(source=path), whether to copy the checkpoint to O(destination).
    type: bool
    default: false
  format:
    description:
      - The required format. V(bf16) means weights without quantization. By default any.
    type: str
    choices: [mxfp4, bf16, fp8, nvfp4, awq, gptq]
  family:
    description: Family of the model. A checkpoint of another family is an error.
    type: str
    default: gpt_oss
  verify:
    description:
      - V(quick) compares sizes and times with the manifest, and reads only files whose time changed.
      - V(full) also detects silent corruption of the disk. It reads every file, on all cores, and compares its sha256
        with the manifest.
      - Checksums of the manifest are those of the hub, those known for C(openai/gpt-oss-120b), or those of the files
        when the manifest was written. In the last case initial corruption is not detected, see RV(verified).
    type: str
    choices: [quick, full]
    default: quick
  draft:
    description:
      - Directory of a draft model for speculative decoding, which must exist unless O(draft_repo) is set. With
        O(source=path) it is never copied.
      - Its hidden size and vocabulary must be those of the model, and its files complete, by their index and headers.
      - An existing draft gets a separate manifest and is verified like the model; it is never changed.
    type: path
  draft_repo:
    description: For a hub, the repository of the draft model.
    type: str
  draft_revision:
    description: Revision of O(draft_repo).
    type: str
  draft_eagle3:
    description:
      - Whether the draft must be an EAGLE3 head that the platform's engine supports, by its configuration and the
        names and shapes of its layers. Other drafts are an error before the model, and if possible before the draft,
        is downloaded.
    type: bool
    default: false
  adapter:
    description:
      - For a LoRA adapter C(base), the name of its base model, and C(max_rank), the largest rank that its servers load,
        or null for any. Its files are C(adapter_config.json) and C(adapter_model.safetensors).
      - An adapter of another type, of another base model or with a larger rank is an error before it is downloaded.
    type: dict
    default: {}
  endpoint:
    description: URL of the hub, or of a mirror, without a user. By default that of the hub.
    type: str
  include:
    description: For a hub, patterns of files to download. C(*) also matches slashes. By default all.
    type: list
    elements: str
    default: []
  exclude:
    description:
      - For a hub, patterns of files to exclude. The default excludes two directories of C(openai/gpt-oss) with copies
        of the weights.
    type: list
    elements: str
    default: [original/*, metal/*]
  token:
    description: For a hub, the token of an account. It is given to the job on its standard input.
    type: str
  refresh:
    description: For a hub, whether to resolve the revision and to list the repository again.
    type: bool
    default: false
  workers:
    description: For a hub, the number of parallel downloads.
    type: int
    default: 8
  retries:
    description: For a hub, the number of attempts without progress before the job fails.
    type: int
    default: 5
  timeout_s:
    description: For a hub, seconds of silence after which a connection counts as broken.
    type: int
    default: 30
  wait_s:
    description: Seconds to wait for the end of a job before the module returns.
    type: int
    default: 5
  environment:
    description:
      - For a hub, environment variables of the job, such as C(HTTPS_PROXY) and C(NO_PROXY). Names of secrets are an
        error; use O(token) for a token.
    type: dict
    default: {}
  ca_bundle:
    description: For a hub, file on the node with trusted certificates, in PEM. By default the system's.
    type: path
  sha256sums:
    description:
      - List of required checksums in the format of C(sha256sum), a file on the control node or on the node.
      - An existing checkpoint is adopted without a hub if the list contains all of its files.
    type: str
  sums:
    description: Set by the action plugin. The content of O(sha256sums) of the control node.
    type: str
  min_rate:
    description:
      - For a hub, bytes a second. A connection that is slower for twice O(timeout_s) is replaced. V(0) for no limit.
    type: int
    default: 10240
  root:
    description:
      - Root of all directories. Empty for system paths. Jobs have their state in C(var/lib/inference-fleet/jobs) below
        it.
    type: path
    default: ''
  archive:
    description:
      - For O(source=standin), the archive on the control node, by default the collection's. It is copied to the node
        only if it is needed there.
    type: path
  caller:
    description:
      - Set by the action plugin. Identifies the task, to distinguish its job from the job of an earlier play.
    type: str
attributes:
  check_mode:
    support: full
    description: Compares without writing; reads config.json and the index of a hub.
  diff_mode:
    support: full
    description: Shows the recorded files before and after.
  idempotent:
    support: full
    description: A second run changes nothing and, with O(verify=quick), reads no weights.
notes:
  - This module has an action plugin on the control node.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Install the stand-in
  inference.fleet.model_weights:
    source: standin
    repo: inference-fleet/gpt-oss-tiny-standin
    destination: /var/lib/inference-fleet/models/gpt-oss-tiny-standin

- name: Verify a checkpoint on the node
  inference.fleet.model_weights:
    source: path
    repo: openai/gpt-oss-120b
    path: /mnt/models/gpt-oss-120b
    destination: /mnt/models/gpt-oss-120b
    format: mxfp4

- name: Copy a checkpoint from a share and verify every file
  inference.fleet.model_weights:
    source: path
    repo: openai/gpt-oss-120b
    path: /mnt/share/gpt-oss-120b
    copy: true
    destination: /var/lib/inference-fleet/models/gpt-oss-120b
    verify: full

- name: Download from Hugging Face and wait for it
  inference.fleet.model_weights:
    source: huggingface
    repo: openai/gpt-oss-120b
    revision: b5c939de8f754692c1647ca79fbf85e8c1e70f8a
    format: mxfp4
    destination: /var/lib/inference-fleet/models/gpt-oss-120b
    token: "{{ fleet_hf_token }}"
    wait_s: 10
  register: weights
  until: weights is failed or weights.finished
  retries: 8000
  delay: 1

- name: Download the BF16 checkpoint from ModelScope through a proxy
  inference.fleet.model_weights:
    source: modelscope
    repo: unsloth/gpt-oss-120b-BF16
    format: bf16
    destination: /var/lib/inference-fleet/models/gpt-oss-120b-BF16
    environment:
      HTTPS_PROXY: http://proxy.example.org:3128
  register: weights
  until: weights is failed or weights.finished
  retries: 8000
  delay: 1
"""

RETURN = r"""
message:
  description: The changes, or in check mode the planned changes.
  type: str
  returned: success
path:
  description: The directory that servers load.
  type: str
  returned: success
source:
  description: As in O(source).
  type: str
  returned: success
repo:
  description: As in O(repo).
  type: str
  returned: success
revision:
  description: As in O(revision).
  type: str
  returned: success
finished:
  description: Whether the run is complete. If not, the job is still running; call the module again.
  type: bool
  returned: success
progress:
  description: Progress of the job.
  type: dict
  returned: as RV(finished)
  contains:
    phase:
      description:
        - V(listing), V(downloading), V(copying), V(verifying) or V(done).
        - C(waiting for) another run with the same directory, with its host, process and start.
      type: str
    percent:
      description: Percent of the bytes of this phase.
      type: float
    bytes_done:
      description: Bytes that are complete.
      type: int
    bytes_total:
      description: Bytes of this phase.
      type: int
    rate_bytes_s:
      description: Current bytes per second, or null.
      type: int
    eta_s:
      description: Remaining seconds, or null.
      type: int
    file:
      description: A current file, or null.
      type: str
    waiting:
      description: Seconds until the next attempt, and the reason of the last failure; or null.
      type: str
commit:
  description: The resolved commit.
  type: str
  returned: for a hub, when it is finished
fetched:
  description: Downloaded files, or in check mode files to download.
  type: list
  elements: str
  returned: when it is finished
fetched_bytes:
  description: Size of these files.
  type: int
  returned: for a hub, when it is finished
to_fetch_bytes:
  description: Size of the part that was not on the node; of a copy, size of the copied part.
  type: int
  returned: for a hub and for a copy, when it is finished
space:
  description: Size to download or copy, and free space of the file system.
  type: str
  returned: in check mode, with changes
  sample: "60.8 GiB to come, the file system of /var/lib has 912.4 GiB free"
draft:
  description:
    - The draft model with C(path), C(repo), C(revision), C(commit), C(changed), C(verified). Unknown values are null.
  type: dict
  returned: with O(draft), when it is finished
problem:
  description:
    - Kind of a hub's failure. V(repository), V(revision), V(entry), V(access), V(busy), V(network),
      V(foreign), V(disk) or V(other).
  type: str
  returned: when it failed over a hub
verified:
  description:
    - The extent of the verification.
    - V(quick), sizes and times are as recorded. V(full), the sha256 of every file is that of the hub, of the published
      checkpoint, or of the manifest.
    - V(structure), the checkpoint is complete by its index and the headers of its files, without known checksums, as
      for the first run with an unknown directory. Null without weights.
  type: str
  returned: success
repaired:
  description: Missing, changed or corrupt files that were repaired.
  type: list
  elements: str
  returned: success
model_type:
  description: The type in C(config.json).
  type: str
  returned: when there are weights
format:
  description: V(mxfp4) or V(bf16).
  type: str
  returned: when there are weights
hidden_size:
  description: Width of the model.
  type: int
  returned: when there are weights
vocab_size:
  description: Tokens of the vocabulary.
  type: int
  returned: when there are weights
num_layers:
  description: Layers of the model.
  type: int
  returned: when there are weights
shards:
  description: Names of the files with weights.
  type: list
  elements: str
  returned: when there are weights
bytes:
  description: Size of all shards.
  type: int
  returned: when there are weights
rotted:
  description: Changed files that cannot be repaired.
  type: list
  elements: str
  returned: when it failed over such files
missing:
  description: Files that the checkpoint lacks.
  type: list
  elements: str
  returned: when it failed over such files
damage:
  description: What is wrong with shards.
  type: list
  elements: str
  returned: when it failed over such shards
needed_bytes:
  description: Space that is needed.
  type: int
  returned: when there is too little
free_bytes:
  description: Space that there is.
  type: int
  returned: when there is too little
"""
