# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The account and the shared folders."""

from __future__ import annotations

import grp
import os
import pwd
import re
import sys
import types
from unittest import mock

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import accounts as layout
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.jobs import DetachedJob
from ansible_collections.inference.fleet.tests.unit.node_helpers import script
from ansible_collections.inference.fleet.tests.unit.operating import four_steps, operate


@pytest.fixture
def site(tmp_path):
    """run() and steps(), which is four_steps(), of the operation below `root`, a folder of `folder`."""
    root = tmp_path / "ro ot"

    def run(check_mode=False, **arguments):
        return operate("node_layout", check_mode, **{"root": str(root), **arguments})

    def steps(**arguments):
        return four_steps("node_layout", root=str(root), **arguments)

    return types.SimpleNamespace(root=root, folder=tmp_path, run=run, steps=steps)


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
        locked = '[ -e %s/locked ] && { echo "%s: cannot lock /etc/passwd; try again later."; exit 10; }\n'
        script(tools / tool, locked % (tmp_path, tool) + act)
    monkeypatch.setenv("PATH", str(tools) + os.pathsep + os.environ["PATH"])

    def known(tool):
        def get(name):
            if not any(line.startswith(tool) and line.endswith(" " + name) for line in file.read_text().splitlines()):
                raise KeyError(name)

        return get

    monkeypatch.setattr(grp, "getgrnam", known("groupadd"))
    monkeypatch.setattr(pwd, "getpwnam", known("useradd"))
    return file


def test_folders_are_readable_whatever_the_umask_and_one_that_is_there_keeps_its_mode(site):
    root = site.root
    modes = {root / "var/log/inference-fleet": 0o750, root / "etc/inference-fleet": 0o700}
    (root / "etc/inference-fleet").mkdir(parents=True)
    (root / "etc/inference-fleet").chmod(0o700)
    old = os.umask(0o077)
    try:
        site.run()
    finally:
        os.umask(old)
    for path in (root, *root.rglob("*")):
        assert path.stat().st_mode & 0o777 == modes.get(path, 0o755), path


@pytest.mark.parametrize("user", [None, "inference-fleet"])
def test_folders_and_a_system_account_with_its_own_group(site, accounts, user):
    check, applied = site.steps(user=user)
    lib = "var/lib/inference-fleet"
    names = ["etc/inference-fleet", lib, *(lib + name for name in ("/venvs", "/models", "/encodings"))]
    after = ["group inference-fleet", "user inference-fleet"] if user else []
    after += ["directory %s/%s" % (site.root, name) for name in [*names, "var/log/inference-fleet"]]
    assert check["diff"] == applied["diff"] == {"before": "", "after": "\n".join([*after, ""])}
    made = accounts.read_text().splitlines()
    home = "--home-dir %s/%s" % (site.root, lib)
    shell = r"--shell /.*(/nologin|/bin/false)"
    added = "useradd --system --gid inference-fleet %s --no-create-home %s inference-fleet" % (re.escape(home), shell)
    assert len(made) == (2 if user else 0)
    assert all(map(re.fullmatch, ["groupadd --system inference-fleet", added], made))


def test_rights_of_folders_are_corrected_without_following_links(site, accounts):
    site.run(user="inference-fleet")
    target = site.folder / "private"
    target.mkdir(mode=0o700)
    for name in ("models", "servers"):
        (site.root / "var/lib/inference-fleet" / name).mkdir(exist_ok=True)
        (site.root / "var/lib/inference-fleet" / name / "link").symlink_to(target)
    cases = [
        ("etc/inference-fleet", 0o700, 0o755), ("etc/inference-fleet/secrets", 0o777, 0o755),
        ("run/inference-fleet", 0, 0o755), ("var/lib/inference-fleet/servers/server-0", 0, 0o755),
        ("var/lib/inference-fleet/models", 0o2770, 0o2775), ("var/log/inference-fleet", 0o777, 0o750),
    ]  # fmt: skip
    for name, mode, _right in cases:
        (site.root / name).mkdir(parents=True, exist_ok=True)
        (site.root / name).chmod(mode)
    check, applied = site.steps(user="inference-fleet")
    lines = ["%s has mode %04o instead of mode %04o" % (site.root / name, *modes) for name, *modes in cases]
    assert sorted(applied["message"].split("; ")) == sorted(check["message"].split("; ")) == sorted(lines)
    assert [(site.root / name).stat().st_mode & 0o7777 for name, *_modes in cases] == [right for *_rest, right in cases]
    assert target.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="gives folders away")
def test_folders_of_somebody_else_are_taken_back(site, accounts):
    root = site.root
    site.run(user="inference-fleet")
    for name in ("etc/inference-fleet", "var/lib/inference-fleet/models"):
        os.chown(root / name, 1234, 1234)
    _check, applied = site.steps(user="inference-fleet")
    assert applied["message"] == "%s/etc/inference-fleet has owner 1234 instead of owner root" % root
    owners = [(root / name).stat().st_uid for name in ("etc/inference-fleet", "var/lib/inference-fleet/models")]
    assert owners == [0, 1234]


def test_absent_removes_what_was_made_here(site, accounts):
    root = site.root
    for _turn in range(2):  # the second call finds all as it is, and the record stays
        site.run(user="inference-fleet")
    (root / "var/lib/inference-fleet/models/of-the-site").write_text("")
    (root / "run/inference-fleet").mkdir(parents=True)
    (site.folder / "log").mkdir()
    (root / "var/log/inference-fleet").rmdir()
    (root / "var/log/inference-fleet").symlink_to(site.folder / "log")
    assert len(accounts.read_text().splitlines()) == 2
    check, applied = site.steps(state="absent")
    assert check["diff"] == applied["diff"]
    lines = ["user inference-fleet", "group inference-fleet"]
    lines += ["directory %s/%s/inference-fleet" % (root, name) for name in ("run", "etc", "var/log", "var/lib")]
    assert applied["diff"]["before"].splitlines() == lines
    assert accounts.read_text() == ""
    assert not [path for path in root.rglob("*") if "inference-fleet" in path.name]
    assert (site.folder / "log").is_dir()  # a link is not followed


@pytest.mark.parametrize("itself", [False, True])
def test_absent_leaves_what_is_mounted(site, monkeypatch, itself):
    """A whole fleet's artifacts, bound into the folder; and a folder that is a disk of its own."""
    site.run()
    lib = site.root / "var/lib/inference-fleet"
    shared = lib / "artifacts"
    (shared / "of-another-plan").mkdir(parents=True)
    (lib / "to-the-mount").symlink_to(shared)
    mounts = site.folder / "mounts"
    points = [shared, lib] if itself else [shared]
    mounts.write_text(
        "".join("36 35 98:0 / %s rw - ext4 /dev/x rw\n" % str(one).replace(" ", "\\040") for one in points)
    )
    monkeypatch.setattr(files, "MOUNTS", str(mounts))
    site.steps(state="absent")
    assert site.run(state="absent")["message"].endswith("in it: %s" % lib)
    assert [path.name for path in lib.iterdir()] == ["artifacts"]
    assert (shared / "of-another-plan").is_dir()
    monkeypatch.setattr(files, "MOUNTS", "/nonexistent")
    site.steps(state="absent")
    assert not lib.exists()


def test_what_cannot_be_removed_is_an_error(site, monkeypatch):
    site.run()
    monkeypatch.setattr(layout.shutil, "rmtree", mock.Mock(side_effect=OSError(16, "Device or resource busy")))
    failed = site.run(state="absent")
    assert (failed["code"], failed["errno"], str(site.root) in failed["msg"]) == ("node.os-error", "EBUSY", True)


def test_absent_leaves_no_empty_folders_and_ends_downloads_that_outlived_their_play(site):
    root = site.root
    site.run()
    gone = site.run(state="absent")
    assert (gone["changed"], gone["message"], root.exists()) == (True, "nothing is left", False)
    site.run()
    (root / "var" / "mine").write_text("")
    job = DetachedJob(str(site.root / "var/lib/inference-fleet/jobs/weights-1"))
    os.makedirs(job.folder)
    with job.judging():
        job.launch([sys.executable, "-I", "-S", "-c", "import time; time.sleep(900)"], {}, {})
    assert job.alive()
    site.run(True, state="absent")
    assert job.alive()
    site.run(state="absent")
    assert not job.alive()
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == ["var", "var/mine"]


def test_absent_leaves_accounts_of_others(site, accounts):
    accounts.write_text("groupadd --system inference-fleet\n")
    site.run(user="inference-fleet")
    site.run(state="absent")
    assert accounts.read_text() == "groupadd --system inference-fleet\n"
    site.run(user="inference-fleet")
    (site.folder / "locked").write_text("")
    for without_the_rights in ({"state": "absent"}, {"user": "another"}):
        assert site.run(**without_the_rights)["code"] == "node.account-failed"


def test_an_account_that_another_run_makes_at_the_same_time(site, accounts):
    for tool in ("groupadd", "useradd"):
        with (site.folder / "bin" / tool).open("a") as stream:
            stream.write("\necho exists; exit 9\n")
    assert not site.run(user="inference-fleet").get("failed")
    assert [line.split()[0] for line in accounts.read_text().splitlines()] == ["groupadd", "useradd"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"root": __file__}, "node.os-error"),
        ({"root": "relative"}, "node.root-not-absolute"),
        ({"root": "/srv", "user": "Fleet; rm"}, "arguments.value-invalid"),
    ],
)
def test_arguments_that_make_no_sense(site, arguments, code):
    assert site.run(**arguments)["code"] == code
