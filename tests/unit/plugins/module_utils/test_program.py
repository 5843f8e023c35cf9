# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program on a node: what is kept, what is found damaged, what is removed, and what an end on the way leaves."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program, program_check
from ansible_collections.inference.fleet.tests.unit.engines import small_node
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.node_helpers import rot

FILES = {
    "__main__.py": b"import sys\nfrom fleet_node.words import WORD\nprint(WORD, sys.argv[1:])\n",
    "fleet_node/__init__.py": b"",
    "fleet_node/words.py": b"WORD = 'first'\n",
}


@pytest.fixture
def lib(tmp_path):
    folder = tmp_path / "lib"
    folder.mkdir()
    return str(folder)


@pytest.fixture
def files(monkeypatch):
    """The files of a small program in place of all; a test may change them."""
    found = dict(FILES)
    monkeypatch.setattr(program, "files_of", lambda: found)
    monkeypatch.setattr(program, "own_version", lambda: program.version(found))
    monkeypatch.setattr(program, "_write", small_node.write)  # which replaces it for tests with many nodes
    return found


def versions(lib):
    return sorted(name for name in os.listdir(program.place(lib)) if name != program.CURRENT)


def run(lib):
    done = subprocess.run(
        [sys.executable, "-I", program.current(lib), "x"], capture_output=True, text=True, check=True
    )  # fmt: skip
    return done.stdout


def test_an_archive_has_the_same_bytes_each_time_and_the_version_follows_from_names_and_bytes(tmp_path):
    backwards = dict(reversed(FILES.items()))
    assert program.packed(FILES) == program.packed(backwards)
    (tmp_path / "one.zip").write_bytes(program.packed(FILES))
    assert program.unpacked(tmp_path / "one.zip") == FILES
    version = program.version(FILES)
    assert len(version) == program_check.VERSION_LENGTH and version == program.version(backwards)
    for change in {"fleet_node/words.py": b"WORD = 'other'\n"}, {"fleet_node/more.py": b""}:
        assert version != program.version({**FILES, **change})


def test_a_version_is_kept_once_and_goes_when_another_starts_servers(lib, files):
    folder = program.keep(lib)
    first = os.path.basename(folder)
    assert program_check.fault(folder, program.own_version()) is None
    before = os.stat(folder).st_ino
    assert program.keep(lib) == folder
    assert os.stat(folder).st_ino == before
    assert [oct(os.stat(at).st_mode & 0o7777) for at, _names, _files in os.walk(folder)] == ["0o755"] * 4
    program.make_current(lib)
    assert run(lib) == "first ['x']\n"
    os.utime(folder + "/fleet_node/words.py", ns=(1, 1))  # other times alone are no damage
    assert program.current_fault(lib) is None
    files["fleet_node/words.py"] = b"WORD = 'second'\n"
    second = os.path.basename(program.keep(lib))
    assert versions(lib) == sorted([first, second])  # servers start with the first
    assert run(lib) == "first ['x']\n"
    program.make_current(lib)
    assert (versions(lib), run(lib)) == ([second], "second ['x']\n")


def test_nothing_is_kept_before_the_node_has_its_folder_or_in_check_mode(tmp_path, lib, files):
    assert program.keep(str(tmp_path / "none")) is None and not (tmp_path / "none").exists()
    assert program.keep(lib, check_mode=True) is None and os.listdir(lib) == []


def other_manifest(folder, _words):
    """Whoever edits a file and its record still has another version."""
    path = folder / program.MANIFEST
    known = json.loads(path.read_text())
    known["files"]["fleet_node/words.py"][0] = "0" * 64
    path.write_text(json.dumps(known))


DAMAGES = {
    "same size": lambda folder, words: rot(words),
    "compiled": lambda folder, words: rot(next((folder / "fleet_node/__pycache__").glob("words*.pyc"))),
    "missing": lambda folder, words: words.unlink(),
    "link": lambda folder, words: words.symlink_to(words.rename(folder.parent / "elsewhere.py")),
    "writable": lambda folder, words: words.chmod(0o666),
    "odd manifest": lambda folder, words: (folder / program.MANIFEST).write_text('{"files": [1]}'),
    "other manifest": other_manifest,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_found_and_mended(lib, files, damage):
    folder = pathlib.Path(program.keep(lib))
    program.make_current(lib)
    damage(folder, folder / "fleet_node/words.py")
    assert program_check.fault(str(folder), folder.name)
    assert program.current_fault(lib)
    program.keep(lib)
    assert program.current_fault(lib) is None
    assert run(lib) == "first ['x']\n"


LINKS = {
    "missing": os.unlink,
    "dangling": lambda link: shutil.rmtree(os.path.realpath(link)),
    "swapped": lambda link: (os.unlink(link), os.symlink("/", link)),
    "folder": lambda link: (os.unlink(link), os.mkdir(link)),
}


@pytest.mark.parametrize("damage", LINKS.values(), ids=LINKS)
def test_the_link_that_servers_start_by_is_mended(lib, files, damage):
    program.make_current(lib)
    damage(program.current(lib))
    assert program.current_fault(lib)
    program.make_current(lib)
    assert program.current_fault(lib) is None
    assert run(lib) == "first ['x']\n"


def test_a_version_that_a_process_runs_stays(lib, files):
    files["__main__.py"] += b"print(input(), flush=True)\nimport fleet_node.later\n"
    files["fleet_node/later.py"] = b"print('later')\n"
    text = pathlib.Path(program.__file__).with_name("__main__.py").read_text().partition("if __name__")[0]
    files["__main__.py"] = text.encode() + files["__main__.py"].replace(b"from __future__", b"#")
    first = os.path.basename(program.keep(lib))
    program.make_current(lib)
    process = subprocess.Popen(
        [sys.executable, "-I", program.current(lib)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "first []\n"
        del files["fleet_node/later.py"]
        program.make_current(lib)
        assert first in versions(lib) and len(versions(lib)) == 2
        assert process.communicate("on\n", timeout=60)[0] == "on\nlater\n"  # from where it was started
    finally:
        process.kill()
        process.wait()
    files["fleet_node/words.py"] = b"WORD = 'third'\n"
    program.make_current(lib)
    assert versions(lib) == [program.own_version()]


def test_a_copy_that_is_killed_half_way_leaves_what_was_there(lib, files, monkeypatch):
    program.make_current(lib)
    before, first, to_disk = program.own_version(), iter(range(3)), program._to_disk
    files["fleet_node/words.py"] = b"WORD = 'second'\n"

    def killed(path):
        return to_disk(path) if next(first, None) is not None else os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(program, "_to_disk", killed)
        child = os.fork()
        if not child:
            try:
                program.make_current(lib)
            finally:
                os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [name for name in versions(lib) if not name.startswith(".")] == [before]
    assert any(name.startswith(".new-") for name in versions(lib))
    assert run(lib) == "first ['x']\n"
    program.make_current(lib)
    assert (versions(lib), run(lib)) == ([program.own_version()], "second ['x']\n")


def test_what_a_disk_refuses_is_said_and_changes_nothing(lib, files, monkeypatch):
    program.make_current(lib)
    before = versions(lib)
    files["fleet_node/words.py"] = b"WORD = 'second'\n"

    def refuse(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(program, "_to_disk", refuse)
    for call in (program.keep, program.make_current):
        caught = error(call, lib)
        assert (caught.code, caught.details["errno"]) == ("node.os-error", "ENOSPC")
        assert program.place(lib) in caught.message
    assert (versions(lib), run(lib)) == (before, "first ['x']\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is careful about others")
def test_where_others_could_change_it_nothing_is_kept(lib, files):
    os.chmod(lib, 0o777)
    assert program.keep(lib) is None
    os.chmod(lib, 0o755)
    folder = program.keep(lib)
    os.chmod(program.place(lib), 0o775)
    assert "others than root may write" in program_check.fault(folder, program.own_version())


def test_a_version_in_use_is_locked(lib, files):
    folder = program.keep(lib)
    handle, other = program_check.in_use(folder), os.open(folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)
    os.close(other)
    assert program_check.in_use(folder + "-none") is None


WORKERS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from fleet_node import program
from fleet_node.called import operation_of
from fleet_node.measure import gpt_oss_evals_worker
print(operation_of("engine_servers").run.__module__, operation_of("compiled_artifact").run.__module__,
      operation_of("nothing"), program.keep(sys.argv[3]))
argv = program.work(sys.argv[2], gpt_oss_evals_worker.__name__)
if os.path.isfile(sys.argv[1]):
    os.unlink(sys.argv[1])
print(argv[0], flush=True)
os.execv(sys.executable, [sys.executable, "-I", *argv])
"""


@pytest.mark.parametrize("kept", [True, False])
def test_operations_and_jobs_run_from_the_version_that_asks_for_them(lib, tmp_path, kept):
    """A job from a copy where that is an archive, which Ansible removes before the job has ended."""
    path, folder = tmp_path / "fleet.zip", os.path.join(program.place(lib), program.own_version())
    path.write_bytes(program.packed(program.files_of()))
    if kept:
        program.keep(lib)
    command = [sys.executable, "-I", "-c", WORKERS, folder if kept else str(path), str(tmp_path), lib]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    names, started = done.stdout.splitlines()
    assert names == "fleet_node.operations.servers fleet_node.platforms.neuron.operations None " + folder
    assert program_check.fault(folder, program.own_version()) is None
    assert started == (folder if kept else str(tmp_path / "program.zip"))
    assert done.stderr.rstrip().endswith("No module named 'pandas'") and "gpt_oss_evals_worker.py" in done.stderr
