# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What starts the servers of a root after a reboot: a line of a crontab or a unit of the user's, and no other line."""

from __future__ import annotations

import os
import pathlib
import subprocess
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.paths import NodePaths
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services import boot
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.supervisord import Supervisord

CRONTAB = """#!/bin/sh
cd %(folder)s
case $1 in
-l) [ -e table ] && exec cat table; echo "no crontab for me" >&2; exit 1 ;;
-r) exec rm table ;;
-) cat > new; if [ -e refuse ]; then echo "bad minute" >&2; exit 1; fi
   if [ -e cut ]; then head -c 3 new > table; rm cut; else mv new table; fi ;;
esac
"""
LOGINCTL = """#!/bin/sh
cd %(folder)s
[ -e refuse ] && { echo "Access denied" >&2; exit 1; }
case $2 in enable-linger) touch linger/$3 ;; disable-linger) rm linger/$3 ;; esac
"""
SYSTEMCTL = """#!/bin/sh
cd %(folder)s
if [ -e manager ]; then exec cat manager; fi
if [ -e manager-once-it-lingers ] && [ -e linger/me ]; then exec cat manager-once-it-lingers; fi
printf 'LoadState=loaded\\nActiveState=%%s\\n' $([ -e linger/me ] && echo active || echo inactive)
"""
OTHERS = (
    "MAILTO=me\n# mine\n*/5 * * * * true \u2028 # inference.fleet is not this\n"
    "@reboot /bin/sh other # inference.fleet\n"
)


@pytest.fixture
def node(tmp_path, monkeypatch):
    return Node(tmp_path, monkeypatch)


class Node:
    """A root whose user has a crontab and a systemd, as far as programs are put there."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.paths = NodePaths(str(folder / "a root's 100% $HOME"))
        self.manager = Supervisord(self.paths, "/toolkit")
        (folder / "bin").mkdir()
        (folder / "linger").mkdir()
        user = types.SimpleNamespace(pw_dir=str(folder / "home"), pw_name="me")
        monkeypatch.setattr(boot.pwd, "getpwuid", lambda uid: user)
        monkeypatch.setattr(boot.os, "getuid", lambda: 1000)
        monkeypatch.setattr(boot, "PROGRAMS", "%s:/usr/bin:/bin" % (folder / "bin"))
        monkeypatch.setattr(boot, "LINGER", str(folder / "linger"))
        monkeypatch.setattr(boot, "SYSTEMD_RUNS", str(folder / "systemd"))
        monkeypatch.setattr(boot, "cron_runs", lambda: self.cron)
        self.cron = True
        self.table = folder / "table"

    def have(self, *programs):
        for name in programs:
            path = self.folder / "bin" / name
            texts = {"crontab": CRONTAB, "loginctl": LOGINCTL, "systemctl": SYSTEMCTL}
            path.write_text(texts[name] % {"folder": self.folder})
            path.chmod(0o755)
        if "loginctl" in programs:
            self.have("systemctl")
            (self.folder / "systemd").mkdir()

    def ensure(self, way, check=False):
        return boot.ensure(self, way, check)

    def changes(self, way):
        """A run in four steps: check mode, a run, and both once more. The first run's result."""
        check = self.ensure(way, True)
        first = self.ensure(way)
        assert (check["changed"], check["diff"]) == (first["changed"], first["diff"])
        for again in (True, False):
            result = self.ensure(way, again)
            assert (result["changed"], result["diff"]["before"]) == (False, result["diff"]["after"])
        return first

    def files(self):
        home = self.folder / "home"
        return sorted(str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir())


def the_line(node):
    return "@reboot /bin/sh '%s/lib/boot.sh' # inference.fleet\n" % node.paths.lib.replace("'", "'\"'\"'").replace(
        "%", "\\%"
    )


@pytest.mark.parametrize("others", [None, OTHERS, "no newline at its end"])
@pytest.mark.parametrize("way", ["auto", "crontab"])
def test_one_line_of_a_crontab_comes_and_goes(node, way, others):
    node.have("crontab")
    if others:
        node.table.write_text(others)
    assert node.changes(way)["changed"]
    kept = (others or "").rstrip("\n") + ("\n" if others else "")
    assert node.table.read_text() == kept + the_line(node)
    node.table.write_text(kept + the_line(node) + "@daily more\n")
    assert node.changes(way)["changed"] is False
    node.table.write_text(kept)
    assert node.changes(way)["changed"]
    assert node.changes("none")["changed"]
    assert (node.table.read_text() if node.table.exists() else None) == (kept or None)
    assert os.listdir(node.paths.lib + "/lib") == []
    assert not os.path.exists(node.paths.lib + "/boot.json")


@pytest.mark.parametrize("how", ["refuse", "cut"])
def test_a_crontab_that_is_not_taken_stays_as_it_was(node, how):
    node.have("crontab")
    node.table.write_text(OTHERS)
    (node.folder / how).touch()
    with pytest.raises(FleetError) as caught:
        node.ensure("crontab")
    assert caught.value.message == (
        "crontab did not take the line of the servers: %s. The crontab of me is as it was."
        % ("bad minute" if how == "refuse" else "no words")
    )
    assert node.table.read_text() == OTHERS
    (node.folder / how).unlink(missing_ok=True)
    assert node.changes("crontab")["changed"]


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("manager", "LoadState=masked\nActiveState=inactive\n", "the systemd of me, is masked"),
        ("manager", "LoadState=not-found\nActiveState=inactive\n", "the systemd of me, is not-found"),
        ("manager", "LoadState=loaded\nActiveState=failed\n", "the systemd of me, is failed"),
        ("manager", "", "systemd does not answer"),
        ("manager-once-it-lingers", "LoadState=loaded\nActiveState=failed\n", "the systemd of me, is failed"),
        ("manager-once-it-lingers", "LoadState=loaded\nActiveState=inactive\n", "the systemd of me, is inactive"),
    ],
)
@pytest.mark.parametrize("way", ["auto", "user-unit"])
def test_a_systemd_of_the_user_that_cannot_run_is_warned_of(node, monkeypatch, way, file, text, reason):
    monkeypatch.setattr(boot, "START_S", 0.3)
    node.have("loginctl")
    (node.folder / file).write_text(text)
    for _turn in range(2):
        result = node.ensure(way)
        assert (len(result["warnings"]), result["changed"]) == (1, False)
        assert reason in result["warnings"][0]
    assert node.files() == []
    node.have("crontab")
    if way == "auto" and file == "manager":
        assert node.changes(way)["warnings"] == []  # cron does it then
        assert node.table.read_text() == the_line(node)


@pytest.mark.parametrize("lingers", [False, True])
def test_a_unit_of_the_user_that_lingers(node, lingers):
    node.have("loginctl")
    if lingers:
        node.have("crontab")
        (node.folder / "linger" / "me").touch()
    assert node.changes("auto")["changed"]
    unit, want = node.files()[1], node.files()[0]
    assert want == ".config/systemd/user/default.target.wants/" + os.path.basename(unit)
    home = node.folder / "home"
    assert (home / want).resolve() == home / unit
    text = (home / unit).read_text()
    assert 'ExecStart=/bin/sh "%s/lib/boot.sh"' % node.paths.lib.replace("%", "%%").replace("$", "$$") in text
    assert os.path.exists(node.folder / "linger" / "me")
    assert not node.table.exists()
    (home / want).unlink()
    assert node.changes("user-unit")["changed"]
    assert node.changes("none")["changed"]
    assert node.files() == []
    assert os.path.exists(node.folder / "linger" / "me") == lingers


def test_another_way_takes_the_place_of_the_first(node):
    node.have("loginctl", "crontab")
    assert node.changes("crontab")["changed"]
    assert node.changes("auto")["changed"] is False
    assert node.changes("user-unit")["changed"]
    assert not node.table.exists()
    assert len(node.files()) == 2


WARNING = (
    "After a reboot nothing starts the servers of %s: %s. Start them with this play, or set fleet_start_on_boot to "
    "false."
)


@pytest.mark.parametrize(
    ("programs", "way", "reason"),
    [
        ([], "auto", "there is no crontab; systemd does not run"),
        ([], "crontab", "there is no crontab"),
        (["crontab"], "auto", "no cron runs; systemd does not run"),
        (["crontab"], "user-unit", "systemd does not run"),
        (["loginctl"], "user-unit", "me may not linger (Access denied)"),
        (["loginctl"], "auto", "me may not linger (Access denied)"),
    ],
)
def test_where_it_cannot_be_done_it_says_why_and_leaves_nothing(node, programs, way, reason):
    node.have(*programs)
    node.cron = False
    (node.folder / "refuse").touch()
    result = node.ensure(way)
    assert (result["changed"], result["warnings"]) == (False, [WARNING % (node.paths.root, reason)])
    assert node.files() == []
    assert not os.path.exists(node.paths.lib + "/boot.json")


def test_units_of_systemd_need_none_of_it(node):
    node.have("crontab")
    node.manager = types.SimpleNamespace(name="systemd")
    assert node.ensure("auto") == {"changed": False, "diff": {"before": "", "after": ""}, "warnings": []}


def test_the_script_starts_only_where_servers_are_defined(node):
    node.have("crontab")
    program = node.folder / "supervisord"
    program.write_text('#!/bin/sh\nenv > "%s"; echo "$@" >> "%s"\n' % (node.folder / "ran", node.folder / "ran"))
    program.chmod(0o755)
    node.manager.program = str(program)
    node.ensure("crontab")
    os.makedirs(node.manager.programs)
    script = node.paths.lib + "/lib/boot.sh"
    for name, runs in ((None, False), ("watchdog", False), ("server-0", True)):
        if name:
            pathlib.Path("%s/inference-fleet-%s.conf" % (node.manager.programs, name)).touch()
        subprocess.run(["/bin/sh", script], check=True)
        assert (node.folder / "ran").exists() == runs
    ran = (node.folder / "ran").read_text()
    assert "-c %s\n" % node.manager.conf in ran
    assert "INFERENCE_FLEET_SUPERVISOR=%s\n" % node.paths.root in ran
