# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiled artifacts on their way from one node to another: whole, unchanged, and for the right configuration."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pwd
import tarfile

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import (
    artifact_archives as compiled_artifact,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import artifacts
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries, plans

KEY = "0123456789abcdef"


def entry(folder, name="server-0", directory=KEY, **changes):
    path = str(folder / directory)
    values = {
        "platform": "neuron",
        "environment": {"NEURON_COMPILED_ARTIFACTS": path},
        "directories": {"artifact": path},
        "hooks": plan_entries.compile_cache(directory.partition("-")[0]),
        **changes,
    }
    return plan_entries.plan_entry(8000, name, **values)


def complete(folder, directory=KEY, key=KEY):
    path = folder / directory
    (path / "weights").mkdir(parents=True)
    (path / "model.pt").write_bytes(b"graph" * 1000)
    (path / "weights" / "tp0").write_bytes(os.urandom(3000))
    plan_entries.complete_artifact(path, key)
    return path


@pytest.fixture
def exported(tmp_path):
    """(folder of archives, artifact that they were made of)."""
    path = complete(tmp_path / "one")
    result = compiled_artifact.export([entry(tmp_path / "one")], str(tmp_path / "archives"))
    assert result["message"] == "exported " + KEY
    return tmp_path / "archives", path


def error(function, *args, **kwargs):
    """(code, last value)."""
    found = plans.error(function, *args, **kwargs)
    return found.code, found.values[-1]


def tree(path):
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != artifacts.RECORD
    }


def test_from_one_node_to_another(tmp_path, exported):
    archives, path = exported
    other = tmp_path / "two" / "deep"
    wanted = [entry(other), entry(other, "server-1")]
    asked = compiled_artifact.take_over(wanted)
    assert (asked["changed"], asked["needed"], asked["message"]) == (True, [KEY], "would import " + KEY)
    assert not other.exists()
    assert compiled_artifact.take_over(wanted, str(archives), check_mode=True)["message"] == "would import " + KEY
    assert not other.exists()
    done = compiled_artifact.take_over(wanted, str(archives))
    assert (done["changed"], done["message"]) == (True, "imported " + KEY)
    assert tree(other / KEY) == tree(path)
    assert artifacts.state_of(str(other / KEY))[0] == "complete"
    record = files.readable_json(str(other / KEY / artifacts.RECORD))
    assert (record["schema"], record["key"]) == (1, KEY)
    assert sorted(os.listdir(other)) == [KEY]
    again = compiled_artifact.take_over(wanted, str(tmp_path / "gone"))
    assert (again["changed"], again["needed"], again["message"]) == (False, [], "up to date")


def test_export_leaves_what_is_there(tmp_path, exported):
    archives, _path = exported
    before = (archives / (KEY + ".tar")).stat().st_mtime_ns
    result = compiled_artifact.export([entry(tmp_path / "one")], str(archives))
    assert (result["changed"], result["message"], result["archives"]) == (False, "up to date", [])
    assert (archives / (KEY + ".tar")).stat().st_mtime_ns == before
    killed, written = (archives / (".%s.tar.%s" % (KEY, name)) for name in ("killed", "written"))
    killed.touch()
    with open(written, "w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert compiled_artifact.export([entry(tmp_path / "one")], str(archives), force=True)["changed"]
    assert (killed.exists(), written.exists()) == (False, True)
    check = compiled_artifact.export([entry(tmp_path / "one")], str(tmp_path / "no"), check_mode=True)
    assert check["message"] == "would export " + KEY and not (tmp_path / "no").exists()


def test_only_what_is_whole_is_exported(tmp_path):
    servers = [entry(tmp_path / "one")]

    def refused(words):
        code, value = error(compiled_artifact.export, servers, str(tmp_path / "archives"))
        assert code == "artifact.nothing-to-export" and words in value
        assert not (tmp_path / "archives").exists()

    refused("is empty or missing")
    path = complete(tmp_path / "one")
    (path / "model.pt").write_bytes(b"graph")
    refused("files are missing or cut")
    record = artifacts.compiling_record({"name": "server-0", "health": {"budget_s": 1}})
    files.write_json(str(path / artifacts.RECORD), record)
    refused("is being compiled by server-0")
    # a server's account can make a link to a file that it may not read, and root exports
    (path / "model.pt").unlink()
    (path / "model.pt").symlink_to(__file__)
    plan_entries.complete_artifact(path, KEY)
    refused(str(path / "model.pt"))
    servers = [plan_entries.plan_entry(8000)]
    refused("NEURON_COMPILED_ARTIFACTS")


def test_what_is_compiled_now_or_is_somebody_elses_stays(tmp_path, exported):
    archives, _path = exported
    path = tmp_path / "two" / KEY
    path.mkdir(parents=True)
    (path / "mine").write_text("x")
    result = compiled_artifact.take_over([entry(tmp_path / "two")], str(archives))
    assert (result["changed"], result["artifacts"][0]["state"]) == (False, "foreign")
    record = artifacts.compiling_record({"name": "server-0", "health": {"budget_s": 1}})
    files.write_json(str(path / artifacts.RECORD), record)
    result = compiled_artifact.take_over([entry(tmp_path / "two")], str(archives))
    assert result["artifacts"][0]["message"] == "it is being compiled by server-0"
    files.write_json(str(path / artifacts.RECORD), dict(record, boot="before"))
    assert compiled_artifact.take_over([entry(tmp_path / "two")], str(archives))["changed"]
    assert not (path / "mine").exists()


def test_the_archive_of_another_configuration_is_refused(tmp_path, exported):
    archives, _path = exported
    other = "f" * 16
    servers = [entry(tmp_path / "two", directory=other)]
    assert error(compiled_artifact.take_over, servers, str(archives))[0] == "artifact.archive-missing"
    os.rename(archives / (KEY + ".tar"), archives / (other + ".tar"))
    code, problem = error(compiled_artifact.take_over, servers, str(archives))
    assert (code, KEY in problem, other in problem) == ("artifact.archive-does-not-fit", True, True)
    assert not (tmp_path / "two" / other).exists()
    assert error(compiled_artifact.take_over, servers, str(tmp_path / "gone"))[0] == "artifact.archive-missing"


def test_a_damaged_archive_leaves_nothing(tmp_path, exported):
    archive = exported[0] / (KEY + ".tar")
    whole = archive.read_bytes()
    servers = [entry(tmp_path / "two")]

    def refused():
        code, problem = error(compiled_artifact.take_over, servers, str(exported[0]))
        assert code == "artifact.archive-invalid"
        assert not list((tmp_path / "two").glob("*")) and not list((tmp_path / "two").glob(".*"))
        return str(problem)

    def run(change):
        """Pack the archive with `change(name, bytes)`: other bytes, or None to leave the member out."""
        with tarfile.open(fileobj=io.BytesIO(whole)) as old, tarfile.open(archive, "w") as new:
            for member in old:
                data = change(member.name, old.extractfile(member).read())
                if data is not None:
                    member.size = len(data)
                    new.addfile(member, io.BytesIO(data))
        return refused()

    def of_manifest(change):
        return lambda name, data: change(data) if name == compiled_artifact.MANIFEST else data

    def forget(data):
        manifest = json.loads(data)
        del manifest["files"]["model.pt"]
        return json.dumps(manifest).encode()

    changed = run(lambda name, data: data.replace(b"g", b"h", 1) if name == "model.pt" else data)
    assert changed == "model.pt has another sha256 or size"
    assert run(lambda name, data: None if name == "model.pt" else data) == "it lacks model.pt"
    assert "first member" in run(of_manifest(lambda data: None))
    assert "'../evil'" in run(of_manifest(lambda data: data.replace(b'"model.pt"', b'"../evil"')))
    assert run(of_manifest(forget)) == "its manifest does not have 'model.pt'"
    for part in ({"versions": []}, {"weights": {}}, {"weights": ["x"]}, {"schema": 2}, {"files": {"x": {"size": 1}}}):
        run(of_manifest(lambda data, part=part: json.dumps({**json.loads(data), **part}).encode()))
    for damaged in (whole[:6000], b"no tar"):
        archive.write_bytes(damaged)
        refused()


def test_the_packages_of_a_compilation_are_those_of_its_archive_and_of_what_is_imported(tmp_path, monkeypatch):
    installed = {"neuronx-cc": "2.21"}
    monkeypatch.setattr(artifacts, "environment_versions", lambda entry: dict(installed))
    complete(tmp_path / "one")
    archives, two = str(tmp_path / "archives"), entry(tmp_path / "two")
    compiled_artifact.export([entry(tmp_path / "one")], archives)
    installed["neuronx-cc"] = "2.22"
    refused = error(compiled_artifact.take_over, [two], archives)
    words = "it was compiled with neuronx-cc 2.21, and this node has neuronx-cc 2.22"
    assert refused == ("artifact.archive-does-not-fit", words)
    assert not (tmp_path / "two").exists()
    assert error(compiled_artifact.export, [entry(tmp_path / "one")], archives + "2")[0] == (
        "artifact.nothing-to-export"
    )
    installed["neuronx-cc"] = "2.21"
    assert compiled_artifact.take_over([two], archives)["changed"]
    assert files.readable_json(str(tmp_path / "two" / KEY / artifacts.RECORD))["versions"] == installed
    installed["neuronx-cc"] = "2.22"
    assert compiled_artifact.take_over([two])["needed"] == [KEY]  # it is replaced


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another account")
def test_the_account_of_a_server_gets_the_artifact_and_no_file_that_a_link_leads_to(tmp_path, exported, monkeypatch):
    other, extract = tmp_path / "other", compiled_artifact._extract
    other.write_text("x")

    def extract_with_link(archive, manifest, folder):
        extract(archive, manifest, folder)
        os.symlink(other, os.path.join(folder, "link"))

    monkeypatch.setattr(compiled_artifact, "_extract", extract_with_link)
    assert compiled_artifact.take_over([entry(tmp_path / "two", user="nobody")], str(exported[0]))["changed"]
    owners = [file.stat().st_uid for file in (tmp_path / "two" / KEY / "weights" / "tp0", other)]
    assert owners == [pwd.getpwnam("nobody").pw_uid, 0]
