# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Encodings from each kind of source; the published ones are replaced by small ones with their own sha256."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import socket
import threading
import venv

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import encodings as te
from ansible_collections.inference.fleet.tests.unit.node_helpers import four_steps, run_module
from ansible_collections.inference.fleet.tests.unit.operating import Operation

tiktoken_encodings = Operation("tiktoken_encodings")

CONTENT = {"o200k_base": b"IQ== 0\n" * 40, "cl100k_base": b"Ig== 0\n" * 30}
SHA = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


@pytest.fixture(autouse=True)
def small_encodings(monkeypatch):
    small = {name: {"sha256": SHA[name], "size": len(content)} for name, content in CONTENT.items()}
    monkeypatch.setattr(te, "ENCODINGS", small)
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def served(tmp_path):
    """(base URL, log of requests, log of logins): a server of the folder tmp_path/served, whatever the host."""
    folder = tmp_path / "served"
    folder.mkdir()
    log, logins = [], []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            log.append(self.path)
            logins.append(self.headers.get("Authorization"))
            file = folder / self.path.rsplit("/", 1)[-1]
            if not file.exists():
                self.send_error(404, "Not Found")
                return
            content = file.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    for port in range(18300, 18400):
        try:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
            break
        except OSError:
            continue
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield "http://127.0.0.1:%d/encodings" % port, log, logins
    server.shutdown()
    server.server_close()


@pytest.fixture
def place(tmp_path, capsys):
    """What all runs have in common: place.run(...), place.four_steps(...), the folder place.path."""

    class Place:
        path = tmp_path / "lib" / "encodings"
        file = path / "o200k_base.tiktoken"

        def run(self, check_mode=False, **arguments):
            return run_module(capsys, tiktoken_encodings, check_mode, directory=str(self.path), **arguments)

        def four_steps(self, **arguments):
            return four_steps(capsys, tiktoken_encodings, directory=str(self.path), **arguments)

    return Place()


def file_source(tmp_path, name="o200k_base", content=None):
    path = tmp_path / "share" / (name + ".tiktoken")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(CONTENT[name] if content is None else content)
    return {"type": "file", "path": str(path)}


def package_source(tmp_path, body):
    """A Python that does as the shell text says: $worker is its standard input, $2 the name, $3 the file to write."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nworker=$(cat)\n" + body)
    python.chmod(0o755)
    return {"type": "package", "python": str(python)}


def test_placed_checked_and_left_alone(place, tmp_path):
    source = file_source(tmp_path)
    check, applied = place.four_steps(sources=[source])
    line = "%s sha256 %s\n" % (place.file, SHA["o200k_base"])
    assert check["diff"] == applied["diff"] == {"before": "", "after": line}
    assert check["message"] == "would place o200k_base in %s" % place.path
    assert applied["files"] == {
        "o200k_base": {
            "path": str(place.file),
            "sha256": SHA["o200k_base"],
            "size": len(CONTENT["o200k_base"]),
            "source": "file " + source["path"],
        }
    }
    assert place.file.read_bytes() == CONTENT["o200k_base"]
    assert os.listdir(place.path) == [place.file.name]


def test_a_wrong_file_is_replaced(place, tmp_path):
    place.path.mkdir(parents=True)
    place.file.write_bytes(b"IQ== 0\nno")
    _check, applied = place.four_steps(sources=[file_source(tmp_path)])
    wrong = hashlib.sha256(b"IQ== 0\nno").hexdigest()
    assert applied["diff"]["before"] == "%s sha256 %s\n" % (place.file, wrong)
    assert place.file.read_bytes() == CONTENT["o200k_base"]


def test_readable_by_the_service(place, tmp_path):
    old = os.umask(0o077)
    try:
        place.run(sources=[file_source(tmp_path)])
    finally:
        os.umask(old)
    assert (place.path.stat().st_mode & 0o777, place.file.stat().st_mode & 0o777) == (0o755, 0o644)
    place.file.chmod(0o600)
    check, _applied = place.four_steps(sources=[])
    assert check["diff"]["before"].endswith(" not readable by all\n")
    assert place.file.stat().st_mode & 0o777 == 0o644


def test_both_from_a_directory(place, tmp_path):
    for name in CONTENT:
        file_source(tmp_path, name)
    sources = [{"type": "file", "path": str(tmp_path / "share")}]
    _check, applied = place.four_steps(sources=sources, encodings=["o200k_base", "cl100k_base"])
    assert sorted(applied["files"]) == ["cl100k_base", "o200k_base"]
    assert sorted(os.listdir(place.path)) == ["cl100k_base.tiktoken", "o200k_base.tiktoken"]


def test_one_that_is_not_to_be_had_leaves_the_other_unwritten(place, tmp_path):
    failed = place.run(sources=[file_source(tmp_path)], encodings=["o200k_base", "cl100k_base"])
    assert failed["failed"] and not place.path.exists()


def test_sources_are_tried_in_order_and_the_rest_is_not_asked(place, tmp_path, served):
    base, log, _logins = served
    sources = [{"type": "file", "path": "/nowhere"}, file_source(tmp_path), {"type": "url", "base": base}]
    applied = place.run(sources=sources)
    assert applied["files"]["o200k_base"]["source"] == "file " + sources[1]["path"]
    assert log == []


def test_every_source_is_named_when_none_has_it(place, tmp_path, served):
    base, _log, _logins = served
    wrong = file_source(tmp_path, content=b"wrong")
    package = package_source(tmp_path, "echo first >&2; echo 'no such encoding.' >&2; exit 3\n")
    sources = [
        package,
        {"type": "package", "python": ""},
        {"type": "package", "python": "/nowhere/python"},
        wrong,
        {"type": "url", "base": base.replace("//", "//user:s3cret@")},
        {"type": "url", "base": "file:///etc"},
    ]
    place.path.mkdir(parents=True)
    place.file.write_bytes(b"old")
    failed = place.run(sources=sources)
    assert failed["code"] == "encodings.no-source"
    assert failed["tried"][0] == "package %s: no such encoding" % package["python"]
    assert failed["tried"][2].startswith("file %s: 5 bytes with sha256" % wrong["path"])
    assert failed["tried"][3] == "url %s: HTTP 404" % base.replace("//", "//***@")
    assert len(failed["tried"]) == 5 and "s3cret" not in json.dumps(failed)
    assert place.file.read_bytes() == b"old"


def test_a_source_without_its_place(place):
    result = place.run(sources=[{"type": "url", "path": "/x"}])
    assert result["code"] == "arguments.invalid"
    assert "base found in sources" in result["msg"]


def test_from_a_url(place, served, tmp_path):
    base, log, _logins = served
    shutil.copy(file_source(tmp_path)["path"], tmp_path / "served")
    place.four_steps(sources=[{"type": "url", "base": base + "/"}])
    assert log == ["/encodings/o200k_base.tiktoken"]


def test_a_url_that_gives_more_than_the_file(place, served, tmp_path):
    base, _log, _logins = served
    (tmp_path / "served" / "o200k_base.tiktoken").write_bytes(CONTENT["o200k_base"] + b"x" * 1000)
    failed = place.run(sources=[{"type": "url", "base": base}])
    assert "%d bytes with sha256" % (len(CONTENT["o200k_base"]) + 1) in failed["msg"]


def test_proxies_of_the_environment(place, served, tmp_path, monkeypatch):
    real = socket.getaddrinfo

    def resolve(host, *given, **more):
        if host.endswith(".invalid"):  # the name server here may be slow, or make something up
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    base, log, _logins = served
    shutil.copy(file_source(tmp_path)["path"], tmp_path / "served")
    proxy = base[: -len("/encodings")]
    source = {"type": "url", "base": "http://encodings.invalid/e"}
    assert "encodings.invalid" in place.run(sources=[source], environment={"no_proxy": "*"})["msg"]
    failed = place.run(sources=[source], environment={"HTTP_PROXY": proxy, "no_proxy": ".invalid"})
    assert failed["failed"] and log == []
    assert place.run(sources=[source], environment={"HTTP_PROXY": proxy})["changed"]
    assert log == ["http://encodings.invalid/e/o200k_base.tiktoken"]


def test_a_certificate_bundle_that_is_not_there(place):
    failed = place.run(sources=[{"type": "url", "base": "https://127.0.0.1:1"}], ca_bundle="/nowhere/ca.pem")
    assert "certificates of /nowhere/ca.pem: No such file or directory" in failed["msg"]


def test_from_the_package(place, tmp_path):
    """The worker's whole source goes to the other Python; it can be read even where a module runs from a zip."""
    (tmp_path / "content").write_bytes(CONTENT["o200k_base"])
    source = package_source(
        tmp_path,
        """case "$worker" in *"def o200k_base"*"__main__"*) ;; *) exit 7;; esac
[ "$1 $2" = "- o200k_base" ] && [ -z "$PYTHONPATH" ] && cp %s/content "$3"
"""
        % tmp_path,
    )
    _check, applied = place.four_steps(sources=[source])
    assert applied["files"]["o200k_base"]["source"] == "package " + source["python"]


def test_from_a_python_without_the_package(place, tmp_path):
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    python = str(bare / "bin" / "python")
    failed = place.run(sources=[{"type": "package", "python": python}])
    assert "package %s: oss-harmony is not installed in %s" % (python, bare) in failed["msg"]


def test_a_folder_that_cannot_be_made(place, tmp_path):
    (tmp_path / "lib").write_text("")
    failed = place.run(sources=[file_source(tmp_path)])
    assert failed["code"] == "node.os-error" and "File exists" in failed["msg"]


def test_what_the_controller_has_is_asked_for_in_its_turn(place, tmp_path):
    """The module says what it lacks; the action plugin copies that and asks again."""
    source = {"type": "controller", "path": "/on/the/controller"}
    first = place.run(sources=[file_source(tmp_path), source])
    assert first["files"]["o200k_base"]["source"].startswith("file ")
    shutil.rmtree(place.path)
    sources = [{"type": "file", "path": "/nowhere"}, source]
    asked = place.run(sources=sources)
    assert asked["controller_needed"] == ["o200k_base"] and not place.path.exists()
    check = place.run(True, sources=sources)
    assert check["changed"]
    copied = {**source, "copied": {"o200k_base": file_source(tmp_path)["path"]}}
    _check, applied = place.four_steps(sources=[sources[0], copied])
    assert applied["files"]["o200k_base"]["source"] == "controller /on/the/controller"


def test_the_controllers_file_has_to_be_the_published_one_too(place, tmp_path):
    copied = {
        "type": "controller",
        "path": "/c",
        "copied": {"o200k_base": file_source(tmp_path, content=b"no")["path"]},
    }
    failed = place.run(sources=[copied, {**copied, "path": "/d", "copied": {}}])
    assert len(failed["tried"]) == 2
    assert not place.path.exists()
