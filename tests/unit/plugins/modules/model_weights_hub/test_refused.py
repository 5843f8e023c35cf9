# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hub, node or operator refuse: one sentence each, and nothing changed."""

from __future__ import annotations

import errno
import http.client
import io
import json
import os
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import hub as hub_package
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import manifest as weight_manifest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights.hub import (
    digest,
    huggingface,
    known,
    modelscope,
)
from ansible_collections.inference.fleet.tests.hubs.hub import Hub
from ansible_collections.inference.fleet.tests.hubs.repositories import (
    gpt_oss,
    gpt_oss_files,
)
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_hub.hub_node import (
    DRAFT,
    REPO,
    SHARD,
    TOKEN,
    TOOLKIT,
    Node,
    both,
)


class TestRefused:
    def test_an_unknown_repository(self, node):
        node.hub.repositories.clear()
        node.refused(
            "{hub} does not know the repository made-up/gpt-oss-small (HTTP 404), or hides it. Check repo; if it is "
            "private, give a token that may read it."
        )

    def test_an_unknown_revision(self, node):
        node.name = REPO + " at revision v9"
        node.refused(
            "{hub} has no revision v9 of made-up/gpt-oss-small (HTTP 404). Check revision: a commit, a tag or a "
            "branch.",
            revision="v9",
        )

    @both
    def test_a_gated_repository(self, capsys, tmp_path, source):
        with Hub([gpt_oss(REPO, 30_000, access="gated", tokens=[TOKEN])]) as hub:
            node = Node(capsys, tmp_path, hub, source)
            failed = node.refused(
                "{hub} does not give {name} without a token that may read it (HTTP 401). Accept the conditions of the "
                "repository on its page, and give such a token."
            )
            assert failed["problem"] == "access"
            assert node.run(token=TOKEN)["changed"]
            assert node.found() == node.wanted()

    def test_no_room(self, node, monkeypatch):
        files = node.hub.repositories[REPO].files
        node.hub.fault("listing", sizes={SHARD: 1 << 50})
        total = (1 << 50) + sum(
            files[path].size for path in files if path != SHARD and not path.startswith(("original/", "metal/"))
        )
        failed = node.run()
        assert (failed["needed_bytes"], failed["free_bytes"] < total) == (total, True)
        assert failed["msg"] == (
            "Not enough space for the weights: %s needs 1048576.0 GiB, and the file system of %s has %s free. "
            "Free some, or choose another destination."
            % (node.destination, node.models, weight_manifest.amount(failed["free_bytes"]))
        )
        assert not node.models.exists()

    def test_another_model(self, node):
        node.run()
        node.refused(
            "{destination} holds another model, made-up/gpt-oss-small (source huggingface), and made-up/other (source "
            "huggingface) is wanted there; it is left as it is. Choose another destination, or remove it.",
            repo="made-up/other",
        )

    def test_files_of_unknown_origin(self, node):
        node.destination.mkdir(parents=True)
        (node.destination / "thesis.txt").write_text("three years")
        node.refused(
            "{destination} holds files that this collection did not put there (thesis.txt); they are left as they are. "
            "Choose another destination, or remove them."
        )

    def test_a_pattern_that_matches_nothing(self, node):
        held = "It holds: .gitattributes, LICENSE, README.md, USAGE_POLICY, chat_template.jinja and 32 more."
        node.refused("include has the pattern '*.bin2', which matches no file of {name}. " + held, include=["*.bin2"])
        node.refused("exclude has the pattern 'orginal/*', which matches no file of {name}. " + held,
                     exclude=["orginal/*"])  # fmt: skip

    def test_patterns_that_leave_nothing(self, node):
        node.refused(
            "include and exclude leave no file of {name}. It holds: .gitattributes, LICENSE, README.md, USAGE_POLICY, "
            "chat_template.jinja and 32 more.", include=["*.bin"]
        )  # fmt: skip

    def test_a_pattern_that_leaves_out_what_every_server_needs(self, node):
        node.refused(
            "include and exclude leave out config.json, tokenizer.json of {name}, and no server can do without them. "
            "Change the patterns.", include=["*.safetensors", "*index.json"]
        )  # fmt: skip

    @both
    def test_a_pattern_that_leaves_out_a_shard(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        node.refused(
            "include and exclude leave out model-00014-of-00014.safetensors of {name}, and its index names it. "
            "Change the patterns.", exclude=["*-00014-of-*", "original/*", "metal/*"]
        )  # fmt: skip
        assert hub.sent(REPO, SHARD) == 0

    def test_a_listing_that_hides_a_shard(self, node):
        node.hub.fault("listing", drop=[SHARD])
        node.refused(
            "{hub} does not list %s for {name}, and its index names it. The checkpoint is incomplete; check repo and "
            "revision." % SHARD
        )

    def test_a_listing_that_lied_is_not_kept(self, node):
        node.hub.fault("listing", sha256={SHARD: "a" * 64})
        good = node.hub.repositories[REPO].files[SHARD].sha256
        node.refused(
            "%s of {name} came 3 times from {hub}, and was of sha256 %s, listed is %s. Nothing was replaced. The hub "
            "or a proxy on the way gives wrong data; try later, or another endpoint." % (SHARD, good, "a" * 64),
            check_too=False,
        )
        node.hub.mend()
        node.hub.forget()
        assert node.run()["changed"] and node.found() == node.wanted()
        assert node.hub.sent(REPO, "config.json") == 0

    @pytest.mark.parametrize("toolkit", [TOOLKIT, "/none"], ids=["the client", "without the toolkit"])
    def test_a_mirror_that_gives_its_own_head_for_every_commit(self, node, toolkit):
        commit = known.GPT_OSS_120B.commit
        mirror = node.hub.add(gpt_oss(known.GPT_OSS_120B.repo, 30_000))
        mirror.resolve = lambda revision: mirror.head
        wanted = {"repo": mirror.name, "revision": commit}
        message = (
            "{hub} lists commit %s for %s at revision %s, which is a commit itself. The hub, a mirror or a proxy does "
            "not keep to the revision that it is asked for; choose another endpoint, or another revision."
            % (mirror.head, mirror.name, commit)
        )
        if toolkit == TOOLKIT:
            node.refused(message, **wanted)
            assert not node.models.exists()
        else:  # of known files nothing is asked there
            wanted["include"] = ["*.json", "*.safetensors"]
            assert node.run(True, toolkit=toolkit, **wanted)["msg"] == message.format(hub=node.called)

    def test_what_such_a_mirror_once_gave_is_replaced(self, node):
        """Of a version of this collection that took it."""
        node.run()
        repository = node.hub.repositories[REPO]
        commit = repository.commit(gpt_oss_files(30_000, seed=9))
        manifest = node.manifest()
        (node.destination / weight_manifest.MANIFEST).write_text(json.dumps({**manifest, "revision": commit}))
        assert node.run(revision=commit)["commit"] == commit
        assert node.found() == node.wanted()

    def test_a_listing_that_such_a_mirror_once_gave_is_asked_for_again(self, node):
        repository = node.hub.repositories[REPO]
        held = node.hub.fault("hold", path=SHARD, at=1000)
        node.run(wait_s=0, revision=repository.head)
        wait_until(lambda: node.phase() == "downloading" and held.happened)
        node.kill()
        record = node.models / ".small.inference-fleet-new" / ".listing.json"
        record.write_text(json.dumps({**json.loads(record.read_text()), "commit": "a" * 40}))
        assert node.finish(revision=repository.head)["commit"] == repository.head
        assert node.found() == node.wanted()

    def test_a_hub_that_names_no_commit(self, hub):
        wanted = hub_package.Desired("huggingface", REPO, "main", "/models/small", hub.endpoint)
        client = huggingface.Client(wanted, None)
        client._json = lambda *_given: ({}, None)
        with pytest.raises(hub_package.HubProblem) as problem:
            client.listing()
        assert (problem.value.kind, problem.value.text) == ("foreign", "no commit")
        assert hub.requests == []

    @both
    def test_a_listing_without_a_checksum(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        hub.fault("listing", path="*", sha256={SHARD: "", "metal/model.bin": ""})
        hub.fault("flip", path=SHARD)
        node.refused(
            "{hub} lists no checksum of %s of {name}, so that nobody could tell whether the right bytes come. Choose "
            "another endpoint, or leave out by exclude what servers do not need." % SHARD
        )
        assert hub.sent() == 0
        hub.mend()
        hub.fault("listing", path="*", sha256={"metal/model.bin": ""})
        assert node.run()["changed"] and node.found() == node.wanted()

    @both
    def test_a_page_of_a_portal_instead_of_a_listing(self, capsys, tmp_path, hub, source):
        node = Node(capsys, tmp_path, hub, source)
        hub.fault("page", on=["info", "list"])
        node.refused(
            "{hub} answers for {name} with something that is no listing (no JSON). A proxy or a portal may stand "
            "in the way; check endpoint and proxies.", check_too=False
        )  # fmt: skip

    def test_a_full_disk_in_the_middle(self, tmp_path):
        problem = hub_package.HubProblem("disk", "No space left on device")
        problem.path = SHARD
        wanted = hub_package.Desired("huggingface", REPO, "main", "/models/small", "https://hub")
        assert hub_package.explained(problem, wanted).message == (
            "Cannot write %s of %s at revision main below /models: No space left on device." % (SHARD, REPO)
        )

    @pytest.mark.parametrize("step", ["open", "write", "close", "rename"])
    def test_what_of_hugging_face_is_the_disks_fault(self, hub, tmp_path, monkeypatch, step):
        wanted = hub_package.Desired("huggingface", REPO, "main", str(tmp_path / "small"), hub.endpoint, timeout_s=60)
        client = huggingface.Client(wanted, None)
        listing = client.listing()

        def full(*_given):
            raise OSError(errno.ENOSPC, "No space left on device")

        class Full(io.BytesIO):
            write = full if step == "write" else io.BytesIO.write
            __exit__ = full if step == "close" else io.BytesIO.__exit__

        if step == "rename":
            monkeypatch.setattr(os, "rename", full)
        else:
            opened = full if step == "open" else lambda *_given: Full()
            monkeypatch.setattr(digest, "open", opened, raising=False)
        with pytest.raises(hub_package.HubProblem) as problem:
            client.fetch(listing, "config.json", str(tmp_path))
        assert (problem.value.kind, problem.value.text) == ("disk", "No space left on device")

    @both
    def test_what_is_not_the_disks_fault(self, source):
        """A library that cannot read a file of its own, while it asks the hub."""
        wanted = hub_package.Desired(source, REPO, "main", "/models/small", "http://127.0.0.1:9")
        module_of = {"huggingface": huggingface, "modelscope": modelscope}[source]
        error = FileNotFoundError(2, "No such file or directory")
        assert module_of.Client(wanted, None)._problem(error).kind != "disk"

    def test_what_of_modelscope_is_the_disks_fault(self):
        wanted = hub_package.Desired("modelscope", REPO, "master", "/models/small", "http://127.0.0.1:9")
        client = modelscope.Client(wanted, None)
        for error, kind in (
            (OSError(errno.ENOSPC, "No space left on device"), "disk"),
            (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "network"),
        ):
            assert client._problem(error, 1, fetching=True).kind == kind

    def test_a_path_that_leads_elsewhere(self, node):
        node.hub.fault("listing", add={"../../evil": 3})
        node.refused('{hub} lists a file "../../evil" for {name}; that is no path.')
        assert not (node.models.parent / "evil").exists()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"endpoint": "ftp://hub"}, "endpoint is 'ftp://hub'; allowed: the http or https address of a hub, without "
             "a user, such as https://huggingface.co."),
            ({"endpoint": "https://me:pw@hub"}, "endpoint is 'https://***@hub'; allowed: the http or https address "
             "of a hub, without a user, such as https://huggingface.co."),
            ({"repo": "gpt-oss"}, "repo is 'gpt-oss'; allowed: a repository of Hugging Face, ORG/NAME."),
            ({"repo": "a/../b"}, "repo is 'a/../b'; allowed: a repository of Hugging Face, ORG/NAME."),
            ({"environment": {"HF_TOKEN": TOKEN}}, "environment sets HF_TOKEN; a token is given by `token`, which "
             "keeps it out of logs. environment is for proxies and the like."),
            ({"workers": 0}, "workers is 0; allowed: 1 or more."),
            ({"retries": -1}, "retries is -1; allowed: 0 or more."),
            ({"destination": "/"}, "destination is '/'; it must be the absolute path of a directory."),
            ({"draft_repo": DRAFT}, "draft_repo is %s, but draft, its directory, is not set." % DRAFT),
            ({"root": "here"}, "root is 'here'; it must be an absolute path, or empty for the system's own folders."),
        ],
    )  # fmt: skip
    def test_wrong_options(self, node, changes, message):
        failed = node.run(**changes)
        assert failed["msg"] == message

    def test_no_toolkit(self, node, tmp_path):
        node.refused("There is no Python environment in %s/none; run the role toolkit first." % tmp_path,
                     check_too=False, toolkit=str(tmp_path / "none"))  # fmt: skip

    def test_a_toolkit_without_the_client(self, node, tmp_path):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
        failed = node.run(toolkit=str(tmp_path / "bare"))
        assert failed["msg"] == (
            "The toolkit's Python environment has no client for %s (No module named 'huggingface_hub'). Run the role "
            "toolkit with this recipe." % node.called
        )


@pytest.mark.parametrize("below", [TimeoutError("timed out"), http.client.RemoteDisconnected("Remote end closed")])
def test_a_timeout_of_modelscope_has_one_text(below):
    """Whichever of its library's two clocks was first."""
    from modelscope_hub import errors

    error = errors.RequestTimeoutError("列表单页请求超过 5s")
    error.__cause__ = below
    problem = modelscope.Client.__new__(modelscope.Client)._problem(error)
    assert (problem.kind, problem.text, problem.retry) == ("network", "TimeoutError: timed out", True)
