#!/usr/bin/python
# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: model_weights
short_description: A gpt-oss checkpoint on a node, complete and unchanged
version_added: 0.1.0
description:
  - Downloads or copies a gpt-oss checkpoint to the directory that servers load, or compares the installed one.
  - A checkpoint is accepted if C(config.json) states C(gpt_oss) in the wanted format, C(tokenizer.json) exists, and
    every shard that the index names exists and is as long as its own header implies.
  - A manifest C(.inference-fleet-manifest.json) next to the weights records size, sha256 and time of each file, so that
    later runs find every change, and with O(verify=quick) read no weights.
  - Files are staged in a folder next to O(destination) and installed when all of them are complete and correct. A
    run that was killed is continued by the next one.
  - Downloads, and copies and comparisons of gigabytes, are done by a background job, which continues when the
    connection to the node breaks. The module starts it, waits a little, and returns its progress; called again with the
    same options it polls the same job. A job that was killed is started again, and its download is continued.
  - One run at a time installs weights in a directory, also where nodes share it. Another one waits, names the holder in
    RV(progress), and then finds the installed files. If a file system has no locks, a warning states that.
  - Every file of a hub is compared with the size and checksum that the hub lists, and downloaded again if it differs.
  - A checkpoint that others installed in O(destination) is adopted if a shard of it is as listed. Only files that
    differ or are missing are transferred; files that are not listed stay.
options:
  source:
    description:
      - Where the weights come from.
      - V(standin) is a tiny checkpoint that this collection carries. It answers in valid harmony, so that everything
        around a model can be tried without an accelerator; its answers mean nothing.
      - V(path) is a directory of the node, served where it is unless O(copy) is true.
      - V(huggingface) and V(modelscope) are hubs. Files are downloaded by HTTP; no client library is needed.
    type: str
    choices: [standin, path, huggingface, modelscope]
    required: true
  repo:
    description:
      - Name of the model, such as V(openai/gpt-oss-120b). It is recorded, and another model's directory is refused.
    type: str
    required: true
  revision:
    description:
      - The revision to record; for a hub a commit, a tag or a branch. A branch is resolved when the weights come first;
        later runs stay with the commit that was found then, unless O(refresh) is true.
      - By default, for a hub, the commit that the collection knows the files of (V(openai/gpt-oss-120b)), else V(main)
        or V(master).
    type: str
  destination:
    description: Absolute path of the directory that servers load.
    type: path
    required: true
  path:
    description: For O(source=path), the directory that holds the checkpoint. Without O(copy) it is the O(destination).
    type: path
  copy:
    description: For O(source=path), whether to copy the checkpoint to O(destination).
    type: bool
    default: false
  format:
    description:
      - The format that the checkpoint must be in. V(bf16) stands for weights without quantization. By default any.
    type: str
    choices: [mxfp4, bf16]
  verify:
    description:
      - V(quick) compares sizes and times with the manifest, and reads only files whose time changed.
      - It does not see a byte that was flipped on the disk without a trace. V(full) does; it reads every file, on all
        cores, and compares its sha256 with the one in the manifest.
      - The manifest has what the hub listed, what this collection knows of C(openai/gpt-oss-120b), or what was there
        when it was written. So of a directory that nothing is known of, a byte that was wrong from the start stays
        unseen; RV(verified) says so then.
    type: str
    choices: [quick, full]
    default: quick
  draft:
    description:
      - Directory of a draft model for speculative decoding, which must be there, or comes from O(draft_repo). With
        O(source=path) it is never copied.
      - Its hidden size and vocabulary must be those of the model, and its files complete, by their index and headers.
      - What is there already gets a manifest of its own, and is compared with it as the model is; it is never changed.
    type: path
  draft_repo:
    description: For a hub, the repository that the draft model comes from.
    type: str
  draft_revision:
    description: Revision of O(draft_repo).
    type: str
  draft_eagle3:
    description:
      - Whether the draft must be an EAGLE3 head that the platform's engine runs, by its configuration and the names and
        shapes of its layers. Another one is refused before the model is downloaded.
    type: bool
    default: false
  endpoint:
    description: Address of the hub, or of a mirror, without a user. By default the hub's own.
    type: str
  include:
    description: For a hub, patterns of the files to fetch. C(*) matches slashes too. By default all.
    type: list
    elements: str
    default: []
  exclude:
    description:
      - For a hub, patterns of files to leave out. The default are the two folders of C(openai/gpt-oss) that hold the
        same weights once more.
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
    description: For a hub, how many files are fetched at a time.
    type: int
    default: 8
  retries:
    description: For a hub, how often to try again without a byte of progress before giving up.
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
      - For a hub, environment variables of the job, such as C(HTTPS_PROXY) and C(NO_PROXY). Those that are named like a
        secret are refused; a token is given by O(token).
    type: dict
    default: {}
  ca_bundle:
    description: For a hub, file on the node with the certificates to trust, in PEM; by default the system's own.
    type: path
  sha256sums:
    description:
      - List of checksums as C(sha256sum) writes it, in a file of the controller, or else of the node. The files that it
        names must have them, wherever they come from.
      - A checkpoint that is there already, and all of whose files it names, is adopted by it without asking a hub.
    type: str
  sums:
    description: Filled in by the action plugin. The content of O(sha256sums), where that is on the controller.
    type: str
  min_rate:
    description:
      - For a hub, bytes a second. A connection that is slower for O(min_rate_window_s) is dropped, and another one
        continues the download. V(0) for no limit.
    type: int
    default: 10240
  min_rate_window_s:
    description: For a hub, seconds over which O(min_rate) is taken.
    type: int
    default: 60
  root:
    description:
      - Directory that all folders of the collection lie below. Empty for the system's own. Jobs keep their state in
        C(var/lib/inference-fleet/jobs) below it.
    type: path
    default: ''
  archive:
    description:
      - For O(source=standin), the archive on the control node, by default the collection's. It is copied to the node
        only if it is needed there.
    type: path
  caller:
    description:
      - Filled in by the action plugin. What is the same for all calls of one task, and only there. By it a job that
        this task waits for differs from one that an earlier play left behind.
    type: str
attributes:
  check_mode:
    support: full
    description: Reads and compares what a run would, of a hub also config.json and the index, and writes nothing.
  diff_mode:
    support: full
    description: Shows the recorded files before and after.
  idempotent:
    support: full
    description: A second run changes nothing. With O(verify=quick) it reads no weights.
notes:
  - This module has an action plugin on the controller.
author:
  - inference.fleet contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: The stand-in
  inference.fleet.model_weights:
    source: standin
    repo: inference-fleet/gpt-oss-tiny-standin
    destination: /var/lib/inference-fleet/models/gpt-oss-tiny-standin

- name: A checkpoint that is on the node, looked at and served where it is
  inference.fleet.model_weights:
    source: path
    repo: openai/gpt-oss-120b
    path: /mnt/models/gpt-oss-120b
    destination: /mnt/models/gpt-oss-120b
    format: mxfp4

- name: From a share to a local disk, every file read again
  inference.fleet.model_weights:
    source: path
    repo: openai/gpt-oss-120b
    path: /mnt/share/gpt-oss-120b
    copy: true
    destination: /var/lib/inference-fleet/models/gpt-oss-120b
    verify: full

- name: From Hugging Face, polled until it is there
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

- name: The BF16 checkpoint from ModelScope through a proxy
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
  description: What was done, or would be.
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
  description: How far the job is.
  type: dict
  returned: as RV(finished)
  contains:
    phase:
      description:
        - V(listing), V(downloading), V(copying), V(verifying) or V(done).
        - Where another run brings weights to the same directory, C(waiting for) its host, process and start.
      type: str
    percent:
      description: Percent of the bytes of this phase.
      type: float
    bytes_done:
      description: Bytes that are there.
      type: int
    bytes_total:
      description: Bytes of this phase.
      type: int
    rate_bytes_s:
      description: Bytes a second lately, null where unknown.
      type: int
    eta_s:
      description: Seconds that are left at this rate, null where unknown.
      type: int
    file:
      description: A file that is being worked on, or null.
      type: str
    waiting:
      description: Seconds until the next attempt, and why the last one failed; null where nothing waits.
      type: str
commit:
  description: The commit that the revision was resolved to.
  type: str
  returned: for a hub, when it is finished
fetched:
  description: Files that were fetched, or would be.
  type: list
  elements: str
  returned: when it is finished
fetched_bytes:
  description: Size of these files.
  type: int
  returned: for a hub, when it is finished
to_fetch_bytes:
  description: How much of that was not on the node yet; of a copy, how much had to be copied.
  type: int
  returned: for a hub and for a copy, when it is finished
space:
  description: How much would come, and how much is free on the file system that it goes to.
  type: str
  returned: in check mode, where something would be changed
  sample: "60.8 GiB to come, the file system of /var/lib has 912.4 GiB free"
draft:
  description:
    - The draft model. C(path), C(repo), C(revision), C(commit), C(changed), C(verified); null for what is not known of
      one that was there already.
  type: dict
  returned: with O(draft), when it is finished
problem:
  description:
    - What kind of failure of a hub it was. V(repository), V(revision), V(entry), V(access), V(busy), V(network),
      V(foreign), V(disk) or V(other).
  type: str
  returned: when it failed over a hub
verified:
  description:
    - How the files were checked.
    - V(quick), sizes and times are as recorded. V(full), the sha256 of every file is the one that the hub lists, that
      the published checkpoint is known to have, or that was recorded earlier.
    - V(structure), the checkpoint is complete by its index and the headers of its files, with nothing to compare
      their content with. That is so when a directory of O(source=path) is recorded first, unless it is a known
      checkpoint or brings a manifest, and where no manifest can be kept. Null where there is nothing yet.
  type: str
  returned: success
repaired:
  description: Files that were missing, changed or rotten, and were repaired.
  type: list
  elements: str
  returned: success
model_type:
  description: Always V(gpt_oss).
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
  description: Files that are not what they were, and cannot be repaired from here.
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
