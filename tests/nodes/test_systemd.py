# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two servers under a real systemd on a node of their own: from nothing to stopped, through a reboot."""

from __future__ import annotations

import json
import os
import random
import signal

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.services.systemd import unit_command

TOKEN = "hf_test_0123456789abcdef"
NASTY = '%n %% $HOME $ \'single\' "double" \\ \\x41 \t; # {"a": [1, null]} é 漢 & | > * ~ `id` $(id) \nline'
# laid over the recipe in every play from then on: another one would be a change
CHANGED = {
    "secrets": {"HF_TOKEN": "test_token"},
    "environment": {"NASTY": NASTY, "PERCENT": "100%"},
    "arguments": {"slow": 3},
    "instances": {"server-1": {"arguments": {"nasty": NASTY, "json": {"cost": "$5", "share": "7%"}}}},
}


def site_run(site, *arguments, override=None, playbook="tests/nodes/site.yml"):
    return site.play(playbook, *arguments, override=override or CHANGED, test_token=TOKEN)


def unit(name):
    return "inference-fleet-%s.service" % name


def test_converge_and_nothing_the_second_time(site):
    assert site.site().ok().count("changed") > 0
    show = site.node.ssh("systemctl is-active %s %s" % (unit("server-0"), unit("server-1")))
    assert show.split() == ["active", "active"]
    before = site.pids()
    run = site.site().ok()
    assert run.count("changed") == 0
    assert site.site("--check").ok().count("changed") == 0
    assert site.pids() == before
    assert {server for _pid, server in site.processes()} == {"server-0", "server-1"}


def test_a_server_is_a_unit_of_its_user(site):
    for name, pid in site.pids().items():
        shown = site.node.ssh("systemctl show -p MainPID,User,UnitFileState,NeedDaemonReload %s" % unit(name))
        wanted = {"User=inference-fleet", "MainPID=%d" % pid, "UnitFileState=enabled", "NeedDaemonReload=no"}
        assert set(shown.split()) == wanted
        assert site.node.ssh("stat -c %%U /proc/%d" % pid).strip() == "inference-fleet"
    assert site.node.ssh("systemd-analyze verify /etc/systemd/system/inference-fleet-*.service") == ""


def test_nasty_words_arrive_and_secrets_stay_in_their_file(site):
    site_run(site).ok()
    pids = site.pids()
    code = "import sys, json; print(json.dumps([open('/proc/%s/%s' % (p, f), 'rb').read().decode('utf-8') " \
           "for p in sys.argv[1:] for f in ('cmdline', 'environ')]))"  # fmt: skip
    shown = json.loads(site.node.ssh('PYTHONUTF8=1 python3 -c "%s" %d %d' % (code, pids["server-0"], pids["server-1"])))
    argv, environment = shown[2].split("\0")[:-1], shown[3].split("\0")[:-1]
    assert argv[argv.index("--nasty") + 1] == NASTY
    assert json.loads(argv[argv.index("--json") + 1]) == {"cost": "$5", "share": "7%"}
    for one in (shown[1].split("\0"), environment):
        assert {"NASTY=" + NASTY, "PERCENT=100%", "HF_TOKEN=" + TOKEN} <= set(one)
    assert TOKEN not in shown[0] + shown[2]
    everywhere = site.node.ssh(
        "cat /etc/systemd/system/inference-fleet-*; systemctl show 'inference-fleet-*'; journalctl -b --no-pager; "
        "cat /etc/inference-fleet/servers/* %s/*" % "/run/inference-fleet/servers"
    )
    assert TOKEN not in everywhere
    assert site.node.ssh("stat -c '%a %U' /etc/inference-fleet/secrets/server-0.json").strip() == "600 inference-fleet"
    assert site_run(site).ok().count("changed") == 0


def test_what_systemd_makes_of_a_command(site):
    """The writer's own property, judged by systemd: 400 arguments of random bytes in one command."""
    chance = random.Random(7)
    characters = [*"%$\\\"' \t\n;{}n#é漢\udcff\x7f", "x41", "HOME"]
    arguments = ["".join(chance.choices(characters, k=chance.randrange(9))) for _turn in range(400)]
    code = "import os, sys; open('/tmp/seen', 'w').write('\\n'.join(os.fsencode(a).hex() for a in sys.argv[1:]))"
    command = unit_command(["/usr/bin/python3", "-c", code, *arguments])
    path = site.reports.parent / "writer.service"
    path.write_text("[Service]\nType=oneshot\nExecStart=%s\n" % command)
    site.node.copy(path, "/etc/systemd/system/")
    site.node.ssh("systemctl daemon-reload && systemctl start writer.service")
    seen = [bytes.fromhex(line) for line in site.node.ssh("cat /tmp/seen").split("\n")]
    assert seen == [os.fsencode(argument) for argument in arguments]
    site.node.ssh("rm /etc/systemd/system/writer.service /tmp/seen && systemctl daemon-reload")


def test_a_killed_server_comes_back_and_leaves_nothing_behind(site):
    before = site.processes()
    pid = site.pids()["server-1"]
    (child,) = (one for one, server in before if server == "server-1" and one != pid)
    site.node.ssh("kill -USR1 %d" % child)
    site.wait_for(lambda: site.ignores(child, signal.SIGTERM), 60, "the child ignores TERM")
    site.node.ssh("kill -9 %d" % pid)
    site.wait_for(lambda: site.state("server-1")["pid"] != pid and site.healthy("server-1"), 300, "server-1 comes back")
    after = site.processes()
    # the child has left the process group and ignores TERM: only KILL to the whole cgroup ends it
    assert not {pid, child} & {one for one, _server in after}
    assert [one for one in before if one[1] == "server-0"] == [one for one in after if one[1] == "server-0"]
    run = site_run(site).ok()
    assert run.count("changed") == 0


def test_restarts_by_an_operator_do_not_count(site):
    """systemd runs ExecStop before it ends the engine, so the guard knows."""
    before = site.state("server-1")
    site.node.ssh("systemctl restart " + unit("server-1"))
    site.wait_for(lambda: site.state("server-1")["pid"] != before["pid"] and site.healthy("server-1"), 300, "restart")
    assert site.state("server-1")["starts"][:-1] == before["starts"][:-1]


def test_the_watchdog_restarts_what_hangs_and_goes_when_it_is_switched_off(site):
    watch = {"fleet_watchdog": True, "fleet_watchdog_interval_s": 1, "fleet_watchdog_failures": 2,
             "fleet_watchdog_timeout_s": 2}  # fmt: skip
    for changed in (1, 0):
        run = site.play("tests/nodes/site.yml", override=CHANGED, test_token=TOKEN, **watch).ok()
        assert run.count("changed") == changed
    unit_state = "systemctl is-active inference-fleet-watchdog; systemctl is-enabled inference-fleet-watchdog"
    assert site.node.ssh(unit_state).split() == ["active", "enabled"]
    before = site.pids()
    metrics = "grep ^fleet_server_answers /var/lib/inference-fleet/metrics/inference-fleet.prom"
    site.wait_for(lambda: site.node.ssh(metrics, check=False).count("} 1") == 2, 300, "two answers")
    site.node.ssh("kill -STOP %d" % before["server-1"])
    site.wait_for(lambda: site.state("server-1")["pid"] != before["server-1"] and site.healthy("server-1"), 300, "it")
    assert site.pids()["server-0"] == before["server-0"]
    assert len(site.state("server-1")["starts"]) >= 2
    log = site.node.ssh("journalctl -t inference-fleet-watchdog --output cat --no-pager")
    assert "server-1 does not answer, 2 of 2: a completion: no answer within 2 s" in log
    assert TOKEN not in log
    assert site_run(site).ok().count("changed") == 1
    assert site.node.ssh("ls /etc/systemd/system /etc/systemd/system/*.wants").count("watchdog") == 0
    assert site.node.ssh(unit_state, check=False).split()[0] == "inactive"
    assert site_run(site).ok().count("changed") == 0


def mounted_late(site, folder):
    """A mount of this folder that nothing but the servers wants, and that takes its time. Returns its unit."""
    mount = site.node.ssh("systemd-escape --path --suffix=mount " + folder).strip()
    texts = {
        "slow.service": "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nExecStart=/bin/sleep 3\n",
        mount: "[Unit]\nDefaultDependencies=no\nRequires=slow.service\nAfter=slow.service\n"
        "[Mount]\nWhat=%s\nWhere=%s\nType=none\nOptions=bind\n" % (folder, folder),
    }
    for name, text in texts.items():
        path = site.reports.parent / "late.unit"
        path.write_text(text)
        site.node.copy(path, "/etc/systemd/system/" + name)
    return mount


def test_a_reboot_ends_in_the_same_state_without_a_play(site):
    folder = "/var/lib/inference-fleet/servers/server-0/work"
    mount = mounted_late(site, folder)
    boot = site.node.ssh("systemctl show -p UserspaceTimestampMonotonic --value; uptime -s")
    seconds = site.node.reboot()
    assert site.node.ssh("systemctl show -p UserspaceTimestampMonotonic --value; uptime -s") != boot
    site.wait_for(lambda: site.healthy("server-0") and site.healthy("server-1"), 300, "both servers after the reboot")
    print("reboot: %.1f s" % seconds)
    # a mount that nothing orders, as one with nofail, is there before the server that needs it
    entered = [int(site.node.ssh("systemctl show --property=%s --value '%s'" % one)) for one in (
        ("ActiveEnterTimestampMonotonic", mount), ("ExecMainStartTimestampMonotonic", unit("server-0")))]  # fmt: skip
    assert 0 < entered[0] < entered[1]
    site.node.ssh("cd /etc/systemd/system && rm '%s' slow.service && umount --lazy %s && systemctl daemon-reload"
                  % (mount, folder))  # fmt: skip
    leader, follower = site.state("server-0"), site.state("server-1")
    assert leader["count"] == follower["count"] == 1
    assert follower["started"] >= leader["started"] + 3  # the leader listens three seconds after its start
    run = site_run(site).ok()
    assert run.count("changed") == 0
    verdict = json.loads((site.reports / "verdict.json").read_text())
    assert verdict["ok"] is True


def test_a_server_that_keeps_dying_is_given_up_and_started_by_the_next_play(site):
    """Where nothing is put back; one that is changed in its turn is put back before it comes to that."""
    dying = {**CHANGED, "instances": {"server-1": {"arguments": {"die": True}}}}
    before = site.pids()["server-0"]
    at_once = {"override": dying, "test_token": TOKEN, "serve_changes": "at_once"}
    run = site.play("tests/nodes/site.yml", **at_once)
    assert run.status != 0
    assert "start limit: it started 5 times within" in run.output
    assert "no device to run on" in run.output  # the last lines of its log, from the journal
    assert site.node.ssh("systemctl is-failed " + unit("server-1")).strip() == "failed"
    assert site.state("server-0")["pid"] == before
    site_run(site).ok()
    assert site.state("server-0")["pid"] == before
    assert site.healthy("server-1")


def not_started_by_others(site, name):
    """A unit without a file is still in systemd's memory, until its next reload; who wants it does not get it."""
    site.node.ssh("systemctl start " + unit(name))
    shown = site.node.ssh("systemctl show -p LoadState,ActiveState,ConditionResult " + unit(name))
    assert set(shown.split()) == {"LoadState=loaded", "ActiveState=inactive", "ConditionResult=no"}
    assert name not in {server for _pid, server in site.processes()}


def test_fewer_servers(site):
    before = site.pids()["server-0"]
    fewer = {**CHANGED, "servers": {"server": {"count": 1}}, "instances": None}
    assert site_run(site, override=fewer).ok().count("changed") == 2  # and the kept plan
    assert {server for _pid, server in site.processes()} == {"server-0"}
    assert site.state("server-0")["pid"] == before
    assert site.node.ssh("ls /etc/systemd/system /etc/systemd/system/multi-user.target.wants").count("server-1") == 0
    not_started_by_others(site, "server-1")
    assert site_run(site, override=fewer).ok().count("changed") == 0
    site_run(site).ok()
    assert {server for _pid, server in site.processes()} == {"server-0", "server-1"}


def test_stop_leaves_no_process(site):
    assert site_run(site, playbook="playbooks/stop.yml").ok().count("changed") == 1
    assert site.processes() == []
    assert site_run(site, playbook="playbooks/stop.yml").ok().count("changed") == 0
    # systemd forgets the units themselves with its next reload, which is not worth a container's devices
    active = "systemctl list-units --state=active,activating,failed --no-legend --plain 'inference-fleet-*'"
    assert site.node.ssh(active).strip() == ""
    not_started_by_others(site, "server-0")
    site.node.reboot()
    assert site.processes() == []  # stopped stays stopped
    site.play("playbooks/stop.yml", override=CHANGED, test_token=TOKEN, fleet_purge=True).ok()
    left = "find / -xdev -name '*inference-fleet*'; ls -d /run/inference-fleet 2>/dev/null"
    assert site.node.ssh(left + "; getent passwd inference-fleet", check=False) == ""
