# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compiled artifacts on their way from one node to another: whole, unchanged, and for the right configuration."""

from __future__ import annotations

import io
import json
import os
import pathlib
import tarfile

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import (
    artifact_archives as compiled_artifact,
)
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.platforms.neuron import artifacts
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.supervise import state as guard_state
from ansible_collections.inference.fleet.tests.unit.engines import plan_entries

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
    artifacts.complete(str(path), {"name": "server-0", "environment": {}, "hooks": plan_entries.compile_cache(key)})
    record = files.readable_json(str(path / artifacts.RECORD))
    files.write_json(str(path / artifacts.RECORD), dict(record, found=False))
    return path


@pytest.fixture
def exported(tmp_path):
    """(folder of archives, artifact that they were made of)."""
    path = complete(tmp_path / "one")
    result = compiled_artifact.export([entry(tmp_path / "one")], str(tmp_path / "archives"))
    assert result["message"] == "exported " + KEY
    return tmp_path / "archives", path


def error(function, *args, **kwargs):
    with pytest.raises(FleetError) as caught:
        function(*args, **kwargs)
    return caught.value.message


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
    assert (record["schema"], record["key"], record["imported"], record["found"]) == (1, KEY, True, False)
    assert sorted(os.listdir(other)) == [KEY]
    again = compiled_artifact.take_over(wanted, str(tmp_path / "gone"))
    assert (again["changed"], again["needed"], again["message"]) == (False, [], "up to date")


def test_each_for_itself_takes_the_same_archive(tmp_path, exported):
    archives, _path = exported
    wanted = [entry(tmp_path / "two", name, "%s-%s" % (KEY, name)) for name in ("server-0", "server-1")]
    result = compiled_artifact.take_over(wanted, str(archives))
    assert [row["state"] for row in result["artifacts"]] == ["complete", "complete"]
    assert result["needed"] == [KEY]
    assert compiled_artifact.export(wanted, str(tmp_path / "more"))["archives"][0]["files"] == 2
    assert os.listdir(tmp_path / "more") == [KEY + ".tar"]


def test_export_leaves_what_is_there(tmp_path, exported):
    archives, _path = exported
    before = (archives / (KEY + ".tar")).stat().st_mtime_ns
    result = compiled_artifact.export([entry(tmp_path / "one")], str(archives))
    assert (result["changed"], result["message"], result["archives"][0]["written"]) == (False, "up to date", False)
    assert (archives / (KEY + ".tar")).stat().st_mtime_ns == before
    assert compiled_artifact.export([entry(tmp_path / "one")], str(archives), force=True)["changed"]
    check = compiled_artifact.export([entry(tmp_path / "one")], str(tmp_path / "no"), check_mode=True)
    assert check["message"] == "would export " + KEY and not (tmp_path / "no").exists()


def test_only_what_is_whole_is_exported(tmp_path):
    servers = [entry(tmp_path / "one")]
    message = error(compiled_artifact.export, servers, str(tmp_path / "archives"))
    assert message == (
        "There is nothing complete to export: %s is empty or missing. Deploy this node first; the artifact is complete "
        "once its server is ready." % (tmp_path / "one" / KEY)
    )
    path = complete(tmp_path / "one")
    (path / "model.pt").write_bytes(b"graph")
    assert " lacks files that it had. " in error(compiled_artifact.export, servers, str(tmp_path / "archives"))
    record = artifacts.compiling_record({"name": "server-0", "health": {"budget_s": 1}})
    files.write_json(str(path / artifacts.RECORD), record)
    assert " is being compiled by server-0. " in error(compiled_artifact.export, servers, str(tmp_path / "archives"))
    assert not (tmp_path / "archives").exists()
    message = error(compiled_artifact.export, [plan_entries.plan_entry(8000)], str(tmp_path))
    assert message == (
        "None of this host's servers has a compiled artifact (NEURON_COMPILED_ARTIFACTS equal to directories.artifact)."
    )


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
    assert result["artifacts"][0]["message"] == "is being compiled by server-0"
    files.write_json(str(path / artifacts.RECORD), dict(record, boot="before"))
    assert compiled_artifact.take_over([entry(tmp_path / "two")], str(archives))["changed"]
    assert not (path / "mine").exists()


def test_the_archive_of_another_configuration_is_refused(tmp_path, exported):
    archives, _path = exported
    other = "f" * 16
    servers = [entry(tmp_path / "two", directory=other)]
    message = error(compiled_artifact.take_over, servers, str(archives))
    assert message == (
        "%s has no archive %s.tar, which server-0 would load (there is %s.tar). Deploy one node without a source of "
        "artifacts, export its artifact with playbooks/artifact_export.yml, and run again." % (archives, other, KEY)
    )
    os.rename(archives / (KEY + ".tar"), archives / (other + ".tar"))
    message = error(compiled_artifact.take_over, servers, str(archives))
    assert message == (
        "%s/%s.tar was made for another configuration (key %s); server-0 would load it and ignore what is asked for "
        "(key %s). Export the artifact of a node with the same recipe and overrides, under its own name."
        % (archives, other, KEY, other)
    )
    assert not (tmp_path / "two" / other).exists()
    (tmp_path / "none").mkdir()
    assert "(there is none)" in error(compiled_artifact.take_over, servers, str(tmp_path / "none"))


def rewrite(archive, change):
    """Pack the archive anew with `change(name, bytes)`: other bytes, or None to leave the member out."""
    with tarfile.open(archive) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]
    with tarfile.open(archive, "w") as tar:
        for name, data in members:
            data = change(name, data)
            if data is not None:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def test_a_damaged_archive_leaves_nothing(tmp_path, exported):
    archives, _path = exported
    archive = str(archives / (KEY + ".tar"))
    whole = pathlib.Path(archive).read_bytes()
    servers = [entry(tmp_path / "two")]

    def run(change):
        pathlib.Path(archive).write_bytes(whole)
        rewrite(archive, change)
        message = error(compiled_artifact.take_over, servers, str(archives))
        assert not list((tmp_path / "two").glob("*")) and not list((tmp_path / "two").glob(".*"))
        return message

    assert run(lambda name, data: data.replace(b"g", b"h", 1) if name == "model.pt" else data).startswith(
        "%s is damaged: model.pt has sha256 " % archive
    )
    assert run(lambda name, data: None if name == "model.pt" else data) == (
        "%s is cut: model.pt missing. Bring the archive again." % archive
    )
    assert run(lambda name, data: None if name == compiled_artifact.MANIFEST else data) == (
        "%s is no archive of a compiled artifact (its first member is not manifest.json). Export it again with "
        "playbooks/artifact_export.yml." % archive
    )

    def lead_out(name, data):
        return data.replace(b'"model.pt"', b'"../evil"') if name == compiled_artifact.MANIFEST else data

    assert run(lead_out) == "%s names the file '../evil', which cannot be part of an artifact." % archive

    def forget(name, data):
        if name != compiled_artifact.MANIFEST:
            return data
        manifest = json.loads(data)
        del manifest["files"]["model.pt"]
        return json.dumps(manifest).encode()

    assert run(forget) == "%s holds 'model.pt', which its manifest does not name. Export it again." % archive
    pathlib.Path(archive).write_bytes(whole[:6000])
    assert "Bring the archive again." in error(compiled_artifact.take_over, servers, str(archives))
    pathlib.Path(archive).write_text("no tar")
    assert error(compiled_artifact.take_over, servers, str(archives)).startswith(
        "%s is no archive of a compiled artifact (" % archive
    )


def test_a_user_who_is_not_there(tmp_path, exported):
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    archives, _path = exported
    message = error(compiled_artifact.take_over, [entry(tmp_path / "two", user="nobody-here")], str(archives))
    assert message == "Server 'server-0' runs as the user 'nobody-here', who is not on this node. Nothing was imported."
    compiled_artifact.take_over([entry(tmp_path / "two", user="nobody")], str(archives))
    assert (tmp_path / "two" / KEY / "weights" / "tp0").owner() == "nobody"


@pytest.mark.parametrize("place", ["trn3-eagle3-%s", "%s/compiled"])
def test_the_key_is_the_plans_and_not_a_part_of_the_folders_name(tmp_path, place):
    other = "f" * 16
    complete(tmp_path / "one", place % KEY)
    one = entry(tmp_path / "one", directory=place % KEY, hooks=plan_entries.compile_cache(KEY))
    archives = str(tmp_path / "archives")
    assert [row["key"] for row in compiled_artifact.export([one], archives)["archives"]] == [KEY]
    two = entry(tmp_path / "two", directory=place % other, hooks=plan_entries.compile_cache(other))
    assert " has no archive %s.tar, " % other in error(compiled_artifact.take_over, [two], archives)
    assert not (tmp_path / "two").exists()
    (tmp_path / "one" / (place % KEY)).rename(tmp_path / "moved")
    moved = entry(tmp_path, directory="moved", hooks=plan_entries.compile_cache(other))
    assert "%s is of another configuration (key %s, this one is %s)." % (tmp_path / "moved", KEY, other) in error(
        compiled_artifact.export, [moved], archives
    )
    same = entry(tmp_path / "two", directory=place % KEY, hooks=plan_entries.compile_cache(KEY))
    assert compiled_artifact.take_over([same], archives)["message"] == "imported " + KEY


def test_what_a_start_here_would_clear_is_not_exported(tmp_path, monkeypatch):
    """One of two shards was repaired since; the graphs beside it have the old one in them. Nor does it come back."""
    path, weights = complete(tmp_path / "one"), tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    listed = {name: {"size": 1, "sha256": name, "mtime_ns": 1} for name in ("config.json", "a.safetensors")}
    (weights / "a.safetensors").write_text("x")
    manifest = weights / guard_state.WEIGHT_MANIFEST
    manifest.write_text(json.dumps({"schema": 1, "files": listed}))
    servers = [entry(tmp_path / "one", weights=[str(weights)])]
    record = files.readable_json(str(path / artifacts.RECORD))
    here = {"host": artifacts.socket.gethostname(), **artifacts.identity_of(servers[0])}
    here["machine"] = here["machine"] or "unknown"
    files.write_json(str(path / artifacts.RECORD), dict(record, **here))
    archives = str(tmp_path / "archives")
    assert compiled_artifact.export(servers, archives)["changed"]
    listed["a.safetensors"]["mtime_ns"] = 2
    manifest.write_text(json.dumps({"schema": 1, "files": listed}))
    assert error(compiled_artifact.export, servers, str(tmp_path / "others")) == (
        "There is nothing complete to export: %s does not fit any more: weights in %s were repaired since "
        "(a.safetensors). Deploy this node first; the artifact is complete once its server is ready." % (path, weights)
    )
    assert "weights in %s were repaired since" % weights in error(compiled_artifact.take_over, servers, archives)


def test_other_packages_or_weights_refuse_an_archive(tmp_path):
    """A node that has them all imports it; one that has others is told both sides, and nothing is put there."""
    path = complete(tmp_path / "one")
    weights, packages = tmp_path / "weights", tmp_path / "v" / "lib" / "python3.12" / "site-packages"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    (tmp_path / "v" / "bin").mkdir(parents=True)
    (tmp_path / "v" / "bin" / "vllm").write_text("#!/bin/sh\n")
    (tmp_path / "v" / "bin" / "vllm").chmod(0o755)
    (packages / "neuronx_cc-2.21.dist-info").mkdir(parents=True)
    has = {"weights": [str(weights)], "command": [str(tmp_path / "v" / "bin" / "vllm"), "serve"]}
    record = files.readable_json(str(path / artifacts.RECORD))
    identity = artifacts.identity_of(entry(tmp_path, **has))
    files.write_json(str(path / artifacts.RECORD), dict(record, **identity))
    archives = str(tmp_path / "archives")
    compiled_artifact.export([entry(tmp_path / "one", **has)], archives)
    two = entry(tmp_path / "two", **has)

    def refusal(words):
        assert error(compiled_artifact.take_over, [two], archives) == (
            "%s/%s.tar does not fit this node, where server-0 would load it: it was compiled %s. Bring the same "
            "packages and weights here, or export the artifact of a node that has these, with "
            "-e fleet_artifact_force=true where an older archive is." % (archives, KEY, words)
        )
        assert not (tmp_path / "two").exists()

    (packages / "neuronx_cc-2.21.dist-info").rename(packages / "neuronx_cc-2.22.dist-info")
    refusal("with neuronx-cc 2.21, and this node has neuronx-cc 2.22")
    (packages / "neuronx_cc-2.22.dist-info").rename(packages / "neuronx_cc-2.21.dist-info")
    (weights / "config.json").write_text("{ }")
    now = artifacts.weights_identity(str(weights))["files"]
    words = "from other weights (digest %s) than those in %s (digest %s)"
    refusal(words % (identity["weights"][0]["files"][:12], weights, now[:12]))
    (weights / "config.json").write_text("{}")
    assert compiled_artifact.take_over([two], archives)["changed"]
    imported = files.readable_json(str(tmp_path / "two" / KEY / artifacts.RECORD))
    assert (imported["versions"], imported["weights"]) == (identity["versions"], identity["weights"])
    assert imported["machine"] == identity["machine"]
    assert not compiled_artifact.take_over([two], archives)["changed"]
    # what does not fit any more is replaced
    files.write_json(str(tmp_path / "two" / KEY / artifacts.RECORD), dict(imported, versions={"vllm": "0"}))
    asked = compiled_artifact.take_over([two])
    assert asked["artifacts"][0]["message"] == (
        "it was compiled with no neuronx-cc, vllm 0, and this node has neuronx-cc 2.21, no vllm"
    )
    assert asked["needed"] == [KEY]
    assert compiled_artifact.take_over([two], archives)["artifacts"][0]["state"] == "complete"
    assert not compiled_artifact.take_over([two], archives)["changed"]


def test_a_manifest_that_says_it_in_another_form(tmp_path, exported):
    archives, _path = exported
    archive = str(archives / (KEY + ".tar"))
    for change in ({"versions": []}, {"weights": {}}, {"weights": ["x"]}):
        rewrite(archive, lambda name, data, change=change: json.dumps(dict(json.loads(data), **change)).encode()
                if name == compiled_artifact.MANIFEST else data)  # fmt: skip
        assert error(compiled_artifact.read_manifest, archive) == (
            "%s does not record what it was compiled with. Export it again." % archive
        )
        rewrite(archive, lambda name, data: json.dumps(dict(json.loads(data), versions={}, weights=[])).encode()
                if name == compiled_artifact.MANIFEST else data)  # fmt: skip
