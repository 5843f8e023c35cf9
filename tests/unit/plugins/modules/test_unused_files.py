# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What nothing uses is listed and, when asked, deleted; what anything uses, or is not ours, stays."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import clean as files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import supervisord, systemd
from ansible_collections.inference.fleet.plugins.plugin_utils.operations.servers import unused_table
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import compile_cache, plan_entry
from ansible_collections.inference.fleet.tests.unit.operating import four_steps, operate

KEYS = {"planned": "1" * 16, "deployed": "2" * 16, "old": "3" * 16}


class Node:
    """A root with server-0 planned, server-1 deployed by an earlier plan, and what older plans left."""

    def __init__(self, folder, root="root"):
        self.root = str(folder / root)
        self.lib = self.root + "/var/lib/inference-fleet"
        self.planned = [self.entry("server-0", "planned", "new")]
        self.deployment = {"models": [{"path": self.lib + "/models/next"}], "venv": {"path": self.lib + "/venvs/next"}}
        deployed = self.entry("server-1", "deployed", "earlier")
        self.write(self.root + "/etc/inference-fleet/servers/server-1.json", json.dumps(deployed))
        for name in ("server-0", "server-1", "server-7"):
            for kind in files.KINDS:
                self.write("servers/%s/%s/file" % (name, kind))
        for name in KEYS:
            self.write("artifacts/trn3/%s/inference-fleet.json" % KEYS[name])
        for name in ("new", "earlier", "next", "old"):
            self.write("venvs/%s/.inference-fleet.json" % name)
            self.write("models/%s/.inference-fleet-manifest.json" % name)
            self.write("models/.%s.inference-fleet-new/model.safetensors.incomplete" % name)
        self.parameters = {"root": self.root, "servers": self.planned, "deployment": self.deployment}

    def entry(self, name, key, version):
        lib = self.lib
        artifact = "%s/artifacts/trn3/%s" % (lib, KEYS[key])
        server = "%s/servers/%s" % (lib, name)
        return plan_entry(
            8000,
            name,
            hooks=compile_cache(KEYS[key]),
            command=["%s/venvs/%s/bin/python" % (lib, version), "--model=%s/models/%s" % (lib, version)],
            environment={"TIKTOKEN_ENCODINGS_BASE": lib + "/encodings"},
            weights=["%s/models/%s" % (lib, version)],
            directories={"artifact": artifact, **{kind: server + "/" + kind for kind in ("work", "compile", "cache")}},
        )

    def write(self, path, text="x" * 5000):
        path = os.path.join(self.lib, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)
        return path

    def all_files(self):
        return sorted(os.path.join(folder, name) for folder, _dirs, names in os.walk(self.root) for name in names)

    def clean(self, **more):
        return files.clean(NodePaths(self.root), more.pop("planned", self.planned), self.deployment, **more)

    def unused(self, **more):
        return [row["path"][len(self.lib) + 1 :] for row in self.clean(**more)["unused"]]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


UNUSED = [
    "artifacts/trn3/" + KEYS["old"], "models/.old.inference-fleet-new", "models/old", "servers/server-7", "venvs/old",
]  # fmt: skip


def test_listed_then_deleted_and_nothing_else(node):
    before = node.all_files()
    listed = operate("unused_files", **node.parameters)
    assert [row["path"][len(node.lib) + 1 :] for row in listed["unused"]] == UNUSED
    assert (listed["changed"], listed["removed"], node.all_files()) == (False, [], before)
    assert all(row["size"] >= 5000 and row["why"] and not row["shared"] for row in listed["unused"])

    check, applied = four_steps("unused_files", **node.parameters, remove=True)
    assert check["removed"] == applied["removed"] == [row["path"] for row in listed["unused"]]
    assert check["diff"] == applied["diff"]
    gone = tuple(path + "/" for path in applied["removed"])
    assert node.all_files() == [path for path in before if not path.startswith(gone)]


def test_what_an_interrupted_run_left_is_listed_again(tmp_path, monkeypatch):
    names, unlink = {"a", "b", "c", ".inference-fleet.json"}, os.unlink
    for count in range(len(names)):
        node, left = Node(tmp_path, str(count)), iter(range(count))
        for name in names:
            node.write("venvs/old/" + name)

        def interrupted(path, left=left, **how):
            if os.path.basename(path) in names and next(left, None) is None:
                raise KeyboardInterrupt
            unlink(path, **how)

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(os, "unlink", interrupted)
            node.unused(remove=True)
        assert node.unused() == ["venvs/old"]


def test_what_the_deployed_entries_use_stays_when_the_plan_is_empty(node):
    """A recipe that is no longer planned goes on running until it is stopped."""
    node.deployment = None
    unused = node.unused(planned=[])
    assert not [path for path in unused if "earlier" in path or KEYS["deployed"] in path]
    assert not [path for path in unused if path.startswith("servers/server-1/work")]
    assert {"venvs/new", "models/new", "servers/server-0"} <= set(unused)


def test_what_is_not_of_ours_is_not_listed(node):
    for path in ("venvs/mine/pyvenv.cfg", "models/mine/config.json", "models/.mine/x", "servers/NotOurs/work/x",
                 "artifacts/trn3/mine/inference-fleet.json", "artifacts/trn3/%s/neff" % ("a" * 16),
                 "servers/server-8/notes.txt", "toolkit/bin/python", "elsewhere/x"):  # fmt: skip
        node.write(path)
    assert node.unused() == UNUSED


def test_links_are_neither_followed_nor_deleted(node, tmp_path):
    for name in (".inference-fleet-manifest.json", ".inference-fleet.json"):
        node.write(str(tmp_path / "valuable" / name), "{}")
    for place in ("models/link", "venvs/link", "servers/server-9", "artifacts/trn3/" + "b" * 16):
        os.symlink(tmp_path / "valuable", os.path.join(node.lib, place))
    os.symlink(tmp_path / "valuable", os.path.join(node.lib, "models/old/link"))
    assert node.unused() == UNUSED
    node.clean(remove=True)
    assert len(os.listdir(tmp_path / "valuable")) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"container": {"mounts": [{"source": "LIB/models", "target": "/m", "read_only": True}]}},
        {"config": {"path": "/c", "format": "json", "content": {"draft": "LIB/models/old"}}},
        {"environment": {"SOME": "a:LIB/models/old/sub:b"}},
    ],
)
def test_any_word_of_an_entry_counts(node, changes):
    entry = {**node.planned[0], **json.loads(json.dumps(changes).replace("LIB", node.lib))}
    assert "models/old" not in node.unused(planned=[entry])


@pytest.mark.parametrize("odd", [*" =\\%).é"])
def test_what_is_used_stays_whatever_its_path_consists_of(tmp_path, monkeypatch, odd):
    node = Node(tmp_path, "my%sroot%s" % (odd, odd))
    assert node.unused() == UNUSED
    used = {}
    for kind in ("checkpoint", "argument", "draft", "systemd", "supervisord", "unused"):
        used[kind] = os.path.dirname(node.write("models/%s%s1%s/.inference-fleet-manifest.json" % (kind, odd, odd)))
    more = {"command": ["x", "--draft=" + used["argument"], json.dumps({"model": used["draft"]})]}
    planned = [*node.planned, {**node.planned[0], **more, "weights": [used["checkpoint"]]}]
    node.write(node.root + "/unit", "ExecStart=%s\n" % systemd.unit_command(["/bin/x", used["systemd"]]))
    monkeypatch.setattr(files, "UNITS", node.root.translate({ord(one): "?" for one in odd}) + "/unit")
    definition = "command=%s\n" % supervisord.ini_command(["x", "-m", used["supervisord"]])
    node.write(NodePaths(node.root).etc + "/supervisor.d/inference-fleet-server-0.conf", definition)
    unused = node.unused(planned=planned)
    assert unused == sorted([*UNUSED, os.path.relpath(used["unused"], node.lib)])


def test_a_running_process_counts(node):
    os.makedirs(node.lib + "/venvs/old/bin", exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", node.lib + "/models/old/x"],
        stdin=subprocess.PIPE, cwd=node.lib + "/venvs/old/bin",
    ) as process:  # fmt: skip
        try:
            assert {"models/old", "venvs/old"} & set(node.unused()) == set()
        finally:
            process.stdin.close()
    assert {"models/old", "venvs/old"} <= set(node.unused())


@contextlib.contextmanager
def held(path):
    with open(path, "a", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def test_a_download_at_work_and_a_lock_that_cannot_be_read_keep_the_files(node):
    lock = node.lib + "/models/.old.inference-fleet-lock"
    with held(lock):
        assert {"models/old", "models/.old.inference-fleet-new"} & set(node.unused()) == set()
    assert node.unused() == UNUSED
    os.unlink(lock)
    os.mkdir(lock)  # as an error of a share
    assert {"models/old", "models/.old.inference-fleet-new"} & set(node.unused()) == set()


def test_a_download_that_began_after_the_look_keeps_its_files(node, monkeypatch):
    monkeypatch.setattr(files, "_is_changing", lambda destination: False)
    with held(node.lib + "/models/.old.inference-fleet-lock"):
        kept = node.clean(remove=True)["kept"]
    assert kept == [node.lib + "/models/.old.inference-fleet-new", node.lib + "/models/old"]


def test_a_run_that_changes_the_servers_is_waited_for_by_the_user(node):
    lock = node.write(node.root + "/run/inference-fleet/engine_servers.lock")
    before = node.all_files()
    with held(lock):
        failed = operate("unused_files", **node.parameters, remove=True)
        assert failed["code"] == "servers.locked" and node.root in failed["msg"]
        assert not operate("unused_files", **node.parameters)["changed"]
    assert node.all_files() == before


def test_an_unreadable_entry_stops_it_and_an_empty_node_has_nothing(node, tmp_path):
    result = operate("unused_files", root=str(tmp_path / "empty"), servers=[], remove=True)
    assert (result["changed"], result["unused"], os.path.exists(tmp_path / "empty")) == (False, [], False)
    path = node.write(node.root + "/etc/inference-fleet/servers/server-3.json", "{half")
    failed = operate("unused_files", **node.parameters, remove=True)
    assert failed["code"] == "clean.entry-unreadable" and path in failed["msg"]


def test_what_lies_elsewhere_is_listed_and_deleted_by_a_second_word_only(node, tmp_path):
    shared = tmp_path / "shared"
    for name in ("mine/.inference-fleet-manifest.json", "others/.inference-fleet-manifest.json", "photos/one",
                 *("artifacts/%s/inference-fleet.json" % KEYS[key] for key in ("planned", "old"))):  # fmt: skip
        node.write(str(shared / name), "{}")
    entry = plan_entry(8000, "server-0", weights=[str(shared / "mine")], hooks=compile_cache(KEYS["planned"]),
                       directories={"artifact": str(shared / "artifacts" / KEYS["planned"])})  # fmt: skip
    parameters = {**node.parameters, "servers": [entry]}
    result = operate("unused_files", **parameters, remove=True)
    elsewhere = [str(shared / "artifacts" / KEYS["old"]), str(shared / "others")]
    assert [row["path"] for row in result["unused"] if row["shared"]] == elsewhere == result["kept"]
    assert (shared / "others").is_dir()
    result = operate("unused_files", **parameters, remove=True, remove_shared=True)
    assert result["removed"] == elsewhere
    assert sorted(os.listdir(shared)) == ["artifacts", "mine", "photos"]


def test_what_is_mounted_in_it_keeps_it(node, monkeypatch):
    monkeypatch.setattr(files, "mount_points", lambda: {node.lib + "/models/old/mnt"})
    assert node.clean(remove=True, remove_shared=True)["kept"] == [node.lib + "/models/old"]
    assert os.path.isdir(node.lib + "/models/old")


def test_the_table_says_what_happened_to_each(node):
    result = node.clean(remove=True, check=True)
    shown = unused_table("n1", result, True)
    assert shown["columns"] == ["host", "path", "what", "size", "state", "why"]
    assert {row[4] for row in shown["rows"][:-1]} == {"would be deleted"}
    assert shown["rows"][-1][1] == "all of it"
    result["unused"][0]["shared"], result["removed"] = True, []
    assert [row[4] for row in unused_table("n1", result, False)["rows"][:2]] == ["other nodes may use it", "there"]
