# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The account and the shared folders."""

from __future__ import annotations

import grp
import os
import pwd
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import accounts as layout
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.jobs import DetachedJob
from ansible_collections.inference.fleet.tests.unit.node_helpers import four_steps, run_module
from ansible_collections.inference.fleet.tests.unit.operating import Operation

node_layout = Operation("node_layout")

NAMES = ["etc", "var/lib", "var/lib//venvs", "var/lib//models", "var/lib//encodings", "var/log"]


def directories(root):
    parts = (name.split("//") for name in NAMES)
    return ["%s/%s/inference-fleet%s" % (root, part[0], "/" + part[1] if part[1:] else "") for part in parts]


@pytest.fixture
def accounts(tmp_path, monkeypatch):
    """A node whose accounts are lines of a file, and whose groupadd and useradd add one."""
    file = tmp_path / "accounts"
    file.write_text("")
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("groupadd", "useradd", "groupdel", "userdel"):
        gone = tool.replace("del", "add")
        act = 'echo "%s $*" >> %s' % (tool, file) if tool == gone else "sed -i '/^%s .*'$1'$/d' %s" % (gone, file)
        (tools / tool).write_text(
            '#!/bin/sh\n[ -e %s/locked ] && { echo "%s: cannot lock /etc/passwd; try again later."; exit 10; }\n%s\n'
            % (tmp_path, tool, act)
        )
        (tools / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools) + os.pathsep + os.environ["PATH"])

    def known(tool):
        def get(name):
            if not any(line.startswith(tool) and line.endswith(" " + name) for line in file.read_text().splitlines()):
                raise KeyError(name)

        return get

    monkeypatch.setattr(grp, "getgrnam", known("groupadd"))
    monkeypatch.setattr(pwd, "getpwnam", known("useradd"))
    return file


def test_folders_below_a_root(tmp_path, capsys):
    root = str(tmp_path / "root")
    check, applied = four_steps(capsys, node_layout, root=root)
    assert check["diff"] == applied["diff"]
    assert applied["diff"] == {"before": "", "after": "".join("directory %s\n" % path for path in directories(root))}
    assert (applied["user"], applied["directories"]) == (None, directories(root))


def test_check_mode_makes_nothing(tmp_path, capsys, accounts):
    run_module(capsys, node_layout, check_mode=True, root=str(tmp_path / "root"), user="inference-fleet")
    assert not (tmp_path / "root").exists() and accounts.read_text() == ""


def test_readable_by_the_service_whatever_the_umask(tmp_path, capsys):
    root = tmp_path / "root"
    old = os.umask(0o077)
    try:
        run_module(capsys, node_layout, root=str(root))
    finally:
        os.umask(old)
    for path in (root, *root.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o750 if path == root / "var/log/inference-fleet" else 0o755), path


def test_folders_that_are_there_keep_their_mode(tmp_path, capsys):
    (tmp_path / "etc" / "inference-fleet").mkdir(parents=True, mode=0o700)
    four_steps(capsys, node_layout, root=str(tmp_path))
    assert (tmp_path / "etc" / "inference-fleet").stat().st_mode & 0o777 == 0o700


def test_a_system_account_with_its_own_group(tmp_path, capsys, accounts):
    root = str(tmp_path / "root")
    _check, applied = four_steps(capsys, node_layout, root=root, user="inference-fleet")
    assert applied["diff"]["after"].startswith("group inference-fleet\nuser inference-fleet\ndirectory ")
    group, user = accounts.read_text().splitlines()
    assert group == "groupadd --system inference-fleet"
    assert user.startswith(
        "useradd --system --gid inference-fleet --home-dir %s/var/lib/inference-fleet --no-create-home --shell " % root
    )
    assert user.endswith(("/nologin inference-fleet", "/bin/false inference-fleet"))


def test_folders_that_the_account_cannot_enter_are_opened(tmp_path, capsys, accounts):
    root = tmp_path / "root"
    run_module(capsys, node_layout, root=str(root), user="inference-fleet")
    (root / "etc/inference-fleet").chmod(0o700)
    (root / "var/lib/inference-fleet/models").chmod(0o2770)
    check, applied = four_steps(capsys, node_layout, root=str(root), user="inference-fleet")
    lines = ["%s/etc/inference-fleet has mode 0700 instead of mode 0755" % root,
             "%s/var/lib/inference-fleet/models has mode 2770 instead of mode 2775" % root]  # fmt: skip
    assert applied["message"] == check["message"] == "; ".join(lines)
    assert (root / "etc/inference-fleet").stat().st_mode & 0o7777 == 0o755
    assert (root / "var/lib/inference-fleet/models").stat().st_mode & 0o7777 == 0o2775


def test_rights_of_folders_are_corrected(tmp_path, capsys, accounts):
    root = tmp_path / "root"
    run_module(capsys, node_layout, root=str(root), user="inference-fleet")
    cases = [
        ("etc/inference-fleet/secrets", 0o777, 0o755), ("run/inference-fleet", 0, 0o755),
        ("var/lib/inference-fleet/servers/server-0", 0, 0o755), ("var/log/inference-fleet", 0o777, 0o750),
    ]  # fmt: skip
    for name, mode, _right in cases:
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(mode)
    _check, applied = four_steps(capsys, node_layout, root=str(root), user="inference-fleet")
    for name, mode, right in cases:
        assert "%s has mode %04o instead of mode %04o" % (root / name, mode, right) in applied["message"].split("; ")
        assert (root / name).stat().st_mode & 0o7777 == right


@pytest.mark.skipif(os.getuid() != 0, reason="gives folders away")
def test_folders_of_somebody_else_are_taken_back(tmp_path, capsys, accounts):
    root = tmp_path / "root"
    run_module(capsys, node_layout, root=str(root), user="inference-fleet")
    for name in ("etc/inference-fleet", "var/lib/inference-fleet/models"):
        os.chown(root / name, 1234, 1234)
    _check, applied = four_steps(capsys, node_layout, root=str(root), user="inference-fleet")
    assert applied["message"] == "%s/etc/inference-fleet has owner 1234 instead of owner root" % root
    owners = [(root / name).stat().st_uid for name in ("etc/inference-fleet", "var/lib/inference-fleet/models")]
    assert owners == [0, 1234]


def test_absent_removes_what_was_made_here(tmp_path, capsys, accounts):
    root = tmp_path / "root"
    for _turn in range(2):  # the second call finds all as it is, and the record stays
        run_module(capsys, node_layout, root=str(root), user="inference-fleet")
    (root / "var/lib/inference-fleet/models/of-the-site").write_text("")
    (root / "run/inference-fleet").mkdir(parents=True)
    (tmp_path / "log").mkdir()
    (root / "var/log/inference-fleet").rmdir()
    (root / "var/log/inference-fleet").symlink_to(tmp_path / "log")
    assert len(accounts.read_text().splitlines()) == 2
    check, applied = four_steps(capsys, node_layout, root=str(root), state="absent")
    assert check["diff"] == applied["diff"]
    lines = ["user inference-fleet", "group inference-fleet"]
    lines += ["directory %s/%s/inference-fleet" % (root, name) for name in ("run", "etc", "var/log", "var/lib")]
    assert applied["diff"]["before"].splitlines() == lines
    assert accounts.read_text() == ""
    assert not [path for path in root.rglob("*") if "inference-fleet" in path.name]
    assert (tmp_path / "log").is_dir()  # a link is not followed


@pytest.mark.parametrize("itself", [False, True])
def test_absent_leaves_what_is_mounted(tmp_path, capsys, monkeypatch, itself):
    """A whole fleet's artifacts, bound into the folder; and a folder that is a disk of its own."""
    root = tmp_path / "ro ot"
    run_module(capsys, node_layout, root=str(root))
    lib = root / "var/lib/inference-fleet"
    shared = lib / "artifacts"
    (shared / "of-another-plan").mkdir(parents=True)
    (lib / "to-the-mount").symlink_to(shared)
    mounts = tmp_path / "mounts"
    points = [shared, lib] if itself else [shared]
    mounts.write_text(
        "".join("36 35 98:0 / %s rw - ext4 /dev/x rw\n" % str(one).replace(" ", "\\040") for one in points)
    )
    monkeypatch.setattr(files, "MOUNTS", str(mounts))
    four_steps(capsys, node_layout, root=str(root), state="absent")
    assert run_module(capsys, node_layout, root=str(root), state="absent")["message"].endswith("in it: %s" % lib)
    assert [path.name for path in lib.iterdir()] == ["artifacts"]
    assert (shared / "of-another-plan").is_dir()
    monkeypatch.setattr(files, "MOUNTS", "/nonexistent")
    four_steps(capsys, node_layout, root=str(root), state="absent")
    assert not lib.exists()


def test_what_cannot_be_removed_is_an_error(tmp_path, capsys, monkeypatch):
    root = str(tmp_path / "root")
    run_module(capsys, node_layout, root=root)

    def refuse(folder):
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(layout.shutil, "rmtree", refuse)
    failed = run_module(capsys, node_layout, root=root, state="absent")
    assert (failed["code"], failed["errno"], root in failed["msg"]) == ("node.os-error", "EBUSY", True)


def test_absent_leaves_no_empty_folders_and_says_so(tmp_path, capsys):
    root = tmp_path / "root"
    run_module(capsys, node_layout, root=str(root))
    gone = run_module(capsys, node_layout, root=str(root), state="absent")
    assert (gone["changed"], gone["message"], root.exists()) == (True, "nothing is left", False)
    run_module(capsys, node_layout, root=str(root))
    (root / "var" / "mine").write_text("")
    run_module(capsys, node_layout, root=str(root), state="absent")
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["var", "var/mine"]


def test_absent_ends_downloads_that_outlived_their_play(tmp_path, capsys):
    root = tmp_path / "root"
    run_module(capsys, node_layout, root=str(root))
    job = DetachedJob(str(root / "var/lib/inference-fleet/jobs/weights-1"))
    os.makedirs(job.folder)
    with job.judging():
        job.launch([sys.executable, "-I", "-S", "-c", "import time; time.sleep(900)"], {}, {})
    assert job.alive()
    run_module(capsys, node_layout, True, root=str(root), state="absent")
    assert job.alive()
    run_module(capsys, node_layout, root=str(root), state="absent")
    assert not job.alive() and not os.path.exists(job.folder)


def test_absent_leaves_accounts_of_others(tmp_path, capsys, accounts):
    accounts.write_text("groupadd --system inference-fleet\n")
    root = str(tmp_path / "root")
    run_module(capsys, node_layout, root=root, user="inference-fleet")
    run_module(capsys, node_layout, root=root, state="absent")
    assert accounts.read_text() == "groupadd --system inference-fleet\n"
    run_module(capsys, node_layout, root=root, user="inference-fleet")
    (tmp_path / "locked").write_text("")
    assert run_module(capsys, node_layout, root=root, state="absent")["code"] == "node.account-failed"


def test_an_account_that_another_run_makes_at_the_same_time(tmp_path, capsys, accounts):
    for tool in ("groupadd", "useradd"):
        script = tmp_path / "bin" / tool
        script.write_text("%s\necho exists; exit 9\n" % script.read_text())
    assert not run_module(capsys, node_layout, root=str(tmp_path / "root"), user="inference-fleet").get("failed")
    assert [line.split()[0] for line in accounts.read_text().splitlines()] == ["groupadd", "useradd"]


def test_without_the_rights(tmp_path, capsys, accounts):
    (tmp_path / "locked").write_text("")
    failed = run_module(capsys, node_layout, root=str(tmp_path / "root"), user="inference-fleet")
    assert failed["code"] == "node.account-failed"
    (tmp_path / "file").write_text("")
    failed = run_module(capsys, node_layout, root=str(tmp_path / "file"))
    assert (failed["code"], "%s/file" % tmp_path in failed["msg"]) == ("node.os-error", True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [({"root": "relative"}, "node.root-not-absolute"), ({"root": "/srv", "user": "Fleet; rm"}, "arguments.invalid")],
)
def test_arguments_that_make_no_sense(capsys, arguments, code):
    assert run_module(capsys, node_layout, **arguments)["code"] == code
