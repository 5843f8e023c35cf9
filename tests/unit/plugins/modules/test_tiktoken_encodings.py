# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Encodings from each kind of source; the published ones are replaced by small ones with their own sha256."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import tempfile
import venv
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import encodings
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tests.unit.operating import four_steps, operate

O200K, CL100K = "o200k_base", "cl100k_base"
CONTENT = {O200K: b"IQ== 0\n" * 40, CL100K: b"Ig== 0\n" * 30}
SMALL = {
    name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)} for name, content in CONTENT.items()
}
NOWHERE = {"type": "file", "path": "/nowhere"}


@pytest.fixture(autouse=True)
def small_encodings(monkeypatch):
    monkeypatch.setattr(encodings, "ENCODINGS", SMALL)
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


class Place:
    """Runs with one directory, which is the folder `path`."""

    def __init__(self, path):
        self.path, self.file = path, path / "o200k_base.tiktoken"

    def run(self, *sources, check_mode=False, **arguments):
        return operate("tiktoken_encodings", check_mode, directory=str(self.path), sources=sources, **arguments)

    def four_steps(self, *sources, **arguments):
        return four_steps("tiktoken_encodings", directory=str(self.path), sources=sources, **arguments)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path / "lib" / "encodings")


@pytest.fixture
def share(tmp_path):
    """share(name, content): a source of type file."""

    def add(name=O200K, content=None):
        path = tmp_path / "share" / (name + ".tiktoken")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(CONTENT[name] if content is None else content)
        return {"type": "file", "path": str(path)}

    return add


@pytest.fixture
def served():
    """A server of `pages`, whatever the host; its `url`, and the requested paths."""
    with ScriptedEngine() as server:
        server.url = "http://127.0.0.1:%d" % server.port
        server.paths = lambda: [path for _method, path, *_rest in server.requests]
        yield server


def package_source(tmp_path, body):
    """A Python that does as the shell text says: $worker is its standard input, $2 the name, $3 the file to write."""
    return {"type": "package", "python": script(tmp_path / "python", "worker=$(cat)\n" + body)}


def test_placed_checked_and_left_alone(place, share):
    source = share()
    old = os.umask(0o077)
    try:
        check, applied = place.four_steps(source)
    finally:
        os.umask(old)
    assert (place.path.stat().st_mode & 0o777, place.file.stat().st_mode & 0o777) == (0o755, 0o644)
    line = "%s sha256 %s\n" % (place.file, SMALL[O200K]["sha256"])
    assert check["diff"] == applied["diff"] == {"before": "", "after": line}
    assert applied["files"] == {O200K: {**SMALL[O200K], "path": str(place.file), "source": "file " + source["path"]}}
    assert place.file.read_bytes() == CONTENT[O200K]
    assert os.listdir(place.path) == [place.file.name]
    place.file.write_bytes(b"IQ== 0\nno")
    _check, applied = place.four_steps(source)
    assert hashlib.sha256(b"IQ== 0\nno").hexdigest() in applied["diff"]["before"]
    assert place.file.read_bytes() == CONTENT[O200K]
    place.file.chmod(0o600)
    place.four_steps()
    assert place.file.stat().st_mode & 0o777 == 0o644


def test_two_encodings(place, share, tmp_path):
    assert place.run(share(), encodings=[O200K, CL100K])["failed"] and not place.path.exists()
    share(CL100K)
    folder = {"type": "file", "path": str(tmp_path / "share")}
    place.four_steps(folder, encodings=[O200K, CL100K])
    assert sorted(os.listdir(place.path)) == ["cl100k_base.tiktoken", "o200k_base.tiktoken"]


def test_every_source_is_named_when_none_has_it(place, share, tmp_path, served):
    wrong = share(content=b"wrong")
    package = package_source(tmp_path, "echo first >&2; echo 'no such encoding.' >&2; exit 3\n")
    place.path.mkdir(parents=True)
    place.file.write_bytes(b"old")
    failed = place.run(
        package,
        {"type": "package", "python": ""},
        {"type": "package", "python": "/nowhere/python"},
        wrong,
        {"type": "url", "base": served.url.replace("//", "//user:s3cret@")},
        {"type": "url", "base": "file:///etc"},
        {"type": "controller", "path": "/c", "copied": {O200K: wrong["path"]}},
        {"type": "controller", "path": "/d", "copied": {}},
    )
    assert failed["code"] == "encodings.no-source"
    assert failed["tried"][0] == "package %s: no such encoding" % package["python"]
    assert failed["tried"][2].startswith("file %s: 5 bytes with sha256" % wrong["path"])
    assert failed["tried"][3] == "url %s: HTTP 404" % served.url.replace("//", "//***@")
    assert len(failed["tried"]) == 7 and "s3cret" not in json.dumps(failed)
    assert place.file.read_bytes() == b"old"
    assert place.run({"type": "url", "path": "/x"})["code"] == "arguments.invalid"  # without its place


def test_from_a_url_also_by_a_proxy_of_the_environment(place, served):
    source, path = {"type": "url", "base": served.url + "/encodings/"}, "/encodings/o200k_base.tiktoken"
    served.pages[path] = CONTENT[O200K].decode() + "x" * 1000
    assert "%d bytes with sha256" % (len(CONTENT[O200K]) + 1) in place.run(source)["msg"]
    served.pages[path] = CONTENT[O200K].decode()
    place.four_steps(source)
    assert served.paths() == [path, path]
    address = "http://encodings.invalid/e/o200k_base.tiktoken"
    served.pages[address] = CONTENT[O200K].decode()
    place.file.unlink()
    source = {"type": "url", "base": "http://encodings.invalid/e"}
    assert place.run(source, environment={"HTTP_PROXY": served.url})["changed"]
    assert served.paths()[2:] == [address]


def test_from_the_package_and_from_a_python_without_it(place, tmp_path):
    """The worker's whole source goes to the other Python; it can be read even where a module runs from a zip."""
    (tmp_path / "content").write_bytes(CONTENT[O200K])
    body = """case "$worker" in *"def o200k_base"*"__main__"*) ;; *) exit 7;; esac
[ "$1 $2" = "- o200k_base" ] && [ -z "$PYTHONPATH" ] && cp %s/content "$3"
"""
    source = package_source(tmp_path, body % tmp_path)
    _check, applied = place.four_steps(source)
    assert applied["files"][O200K]["source"] == "package " + source["python"]
    place.file.unlink()
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    assert "oss-harmony is not installed in" in place.run({"type": "package", "python": python})["msg"]


@pytest.mark.skipif(os.getuid() != 0, reason="gives files away")
def test_root_executes_no_python_of_others(place):
    nobody = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        (Path(folder) / "bin").mkdir()
        (Path(folder) / "content").write_bytes(CONTENT[O200K])
        body = '[ "$(id -u)" = %d ] && cp %s/content "$3"\n' % (nobody.pw_uid, folder)
        source = package_source(Path(folder) / "bin", body)
        os.chmod(folder, 0o777)
        assert "root does not execute it" in place.run(source)["msg"]
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        assert place.run(source)["changed"]


def test_a_folder_that_cannot_be_made_and_a_bundle_that_is_not_there(place, share, tmp_path):
    failed = place.run({"type": "url", "base": "https://127.0.0.1:1"}, ca_bundle="/nowhere/ca.pem")
    assert "certificates of /nowhere/ca.pem: No such file or directory" in failed["msg"]
    (tmp_path / "lib").write_text("")
    failed = place.run(share())
    assert (failed["code"], failed["errno"]) == ("node.os-error", "EEXIST")


def test_sources_are_tried_in_order_and_those_of_the_controller_in_their_turn(place, share, served):
    """The module returns what it lacks; the action plugin copies that and asks again."""
    source, url = {"type": "controller", "path": "/on/the/controller"}, {"type": "url", "base": served.url}
    given = share()
    first = place.run(NOWHERE, given, source, url)
    assert first["files"][O200K]["source"] == "file " + given["path"]
    assert served.paths() == []
    shutil.rmtree(place.path)
    assert place.run(NOWHERE, source)["controller_needed"] == [O200K] and not place.path.exists()
    assert place.run(NOWHERE, source, check_mode=True)["changed"]
    _check, applied = place.four_steps(NOWHERE, {**source, "copied": {O200K: given["path"]}})
    assert applied["files"][O200K]["source"] == "controller /on/the/controller"
