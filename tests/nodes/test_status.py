# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody did to servers under a real systemd: status.yml says it and ends with 2, site.yml repairs it."""

from __future__ import annotations

import json

import pytest

UNIT = "inference-fleet-server-0.service"
FILE = "/etc/systemd/system/" + UNIT
ENTRY = "/etc/inference-fleet/servers/server-0.json"


def words(run):
    return " ".join(run.output.split())


def status(site, *arguments, **variables):
    return site.play("playbooks/status.yml", *arguments, **variables)


@pytest.fixture(scope="module")
def deployed(site):
    site.site().ok()
    status(site).ok()
    return site


def shell(site, text):
    return site.node.ssh(text)


def restarted(site, text):
    """Run it, wait for the engine that it starts."""
    pid = site.state("server-0")["pid"]
    shell(site, text)
    site.wait_for(lambda: site.state("server-0")["pid"] != pid and site.healthy("server-0"), 300, "server-0")


def edited(site):
    shell(site, "sed -i s/LimitNOFILE=.*/LimitNOFILE=2048/ " + FILE)
    restarted(site, "systemctl daemon-reload && systemctl restart " + UNIT)
    return ["its service definition differs (%s)" % FILE]


def without_interpreter(site):
    shell(site, "rm /var/lib/inference-fleet/lib/python3")
    return ["/var/lib/inference-fleet/lib/python3 does not lead to a Python that starts servers"]


def by_hand(site):
    """Stopped, and started by the guard in somebody's session."""
    command = shell(site, "sed -n 's/^ExecStart=//p' " + FILE).strip()
    shell(site, "systemctl stop %s; setsid runuser -u inference-fleet -- %s > /dev/null 2>&1 < /dev/null &"
          % (UNIT, command))  # fmt: skip
    site.wait_for(lambda: site.healthy("server-0"), 300, "the server by hand")
    return ["it runs without its service manager (process %d)" % site.state("server-0")["pid"]]


def stopped(site):
    shell(site, "systemctl stop " + UNIT)
    return ["it is stopped"]


def open_secrets(site):
    shell(site, "chmod 666 " + ENTRY)
    return ["%s has mode 0666 instead of 0640" % ENTRY]


FAULTS = (edited, by_hand, stopped, without_interpreter, open_secrets)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_said_and_repaired(deployed, fault):
    site = deployed
    said = fault(site)
    before = site.node.ssh("cat /run/inference-fleet/servers/server-1.json")
    run = status(site)
    assert run.status == 2
    for one in said:
        assert one in words(run)
    first = site.processes()
    check = site.site("--check", "--diff").ok()
    assert check.count("changed") == 1
    assert site.processes() == first
    site.site().ok()
    assert status(site).ok().count("changed") == 0
    assert site.site().ok().count("changed") == 0
    assert site.node.ssh("cat /run/inference-fleet/servers/server-1.json") == before
    assert site.node.ssh("systemctl show -p NeedDaemonReload --value " + UNIT).strip() == "no"


def test_a_drop_in_is_a_note(deployed):
    folder = "/etc/systemd/system/%s.d" % UNIT
    path = folder + "/override.conf"
    shell(deployed, "mkdir -p %s && printf '[Service]\\nSuccessExitStatus=7\\n' > %s && systemctl daemon-reload"
                    % (folder, path))  # fmt: skip
    run = status(deployed).ok()
    assert "note: the drop-in %s changes its unit" % path in words(run)
    assert deployed.site().ok().count("changed") == 0
    shell(deployed, "rm %s && systemctl daemon-reload" % path)


def test_a_foreign_holder_is_named_while_the_server_restarts(deployed, tmp_path):
    taker = (
        "import socket,time\ns=socket.socket()\ns.setsockopt(1,2,1)\nwhile True:\n try: "
        's.bind(("127.0.0.1",8000)); break\n'
        " except OSError: time.sleep(.001)\ns.listen()\ntime.sleep(3600)\n"
    )
    pid = deployed.state("server-0")["pid"]
    taken = "printf '%%s' '%s' > /tmp/taker.py; setsid python3 /tmp/taker.py > /dev/null 2>&1 < /dev/null & "
    taken += "echo $! > /tmp/taker.pid"
    shell(deployed, taken % taker.replace("%", "%%"))
    shell(deployed, "kill -9 %d" % pid)
    deployed.wait_for(lambda: "python3" in shell(deployed, "ss -Hltnp 'sport = :8000'"), 120, "the holder")
    file = tmp_path / "status.json"
    run = status(deployed, fleet_status_file=str(file))
    assert run.status == 2
    assert "its port 8000 on 127.0.0.1 is held by process " in words(run)
    assert "of root (python3 /tmp/taker.py)" in words(run)
    (found,) = json.loads(file.read_text())["hosts"].values()
    rows = {row["name"]: row for row in found["servers"]}
    assert "port" in [one["kind"] for one in rows["server-0"]["differences"]]
    assert rows["server-1"]["differences"] == []
    shell(deployed, "kill $(cat /tmp/taker.pid)")
    deployed.site().ok()
    status(deployed).ok()


def test_a_deleted_account_is_named_and_made_again(deployed):
    pid, before = deployed.state("server-0")["pid"], deployed.pids()["server-1"]
    shell(deployed, "userdel --force inference-fleet; ! id inference-fleet 2> /dev/null && kill -9 %d" % pid)
    show = "systemctl show --property=ExecMainStatus --value %s" % UNIT
    deployed.wait_for(lambda: shell(deployed, show).strip() == "217", 120, "a start without the account")
    run = status(deployed)
    assert run.status == 2
    assert "the account inference-fleet that it runs as is not on this node any more" in words(run)
    assert "signal 0" not in words(run)
    deployed.site().ok()
    status(deployed).ok()
    assert deployed.healthy("server-0") and deployed.pids()["server-1"] == before
    assert deployed.site().ok().count("changed") == 0


def test_a_full_and_a_read_only_file_system_leave_the_servers_as_they_were(deployed):
    site, folder = deployed, "/etc/inference-fleet/servers"
    before = site.pids()
    files = site.node.ssh("cat %s/*" % folder)
    changed = {"instances": {"server-0": {"arguments": {"other": 2}}}}
    try:
        fill = "(dd if=/dev/zero of={0}/.fill bs=1k 2> /dev/null; true)"
        mount = "cp -a {0} /tmp/kept && mount -t tmpfs -o size=64k,mode=755 none {0} && cp -a /tmp/kept/. {0} && "
        shell(site, (mount + fill).format(folder))
        site.site(override=changed).failed(ENTRY + ": No space left on device. Free space or inodes on its file system")
        shell(site, "rm %s/.fill && mount -o remount,ro %s" % (folder, folder))
        site.site(override=changed).failed(ENTRY + ": Read-only file system. Its file system is mounted read-only")
    finally:
        shell(site, "umount %s" % folder)
    assert site.node.ssh("cat %s/*" % folder) == files
    assert site.pids() == before
    assert site.site().ok().count("changed") == 0
