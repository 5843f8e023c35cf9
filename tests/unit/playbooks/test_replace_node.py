# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A changed host key: reported as such by every playbook, and replaced only against the right fingerprint.

The ssh client is OpenSSH; tests/nodes has a real sshd behind it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import types

import asyncssh
import pytest
from ansible_collections.inference.fleet.plugins.plugin_utils.operations import host_key
from ansible_collections.inference.fleet.tests.runs import CLONE, play
from ansible_collections.inference.fleet.tests.unit.engines.plans import error
from ansible_collections.inference.fleet.tests.unit.playbooks.stand_ins import flat, hosts_file

RECIPES = CLONE / "tests" / "nodes" / "recipes"
OTHER = "other ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC of another"
DEFAULT = {"ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}


class Fleet:
    """Host n1 behind the server, n2 that nobody may contact."""

    def __init__(self, folder, server, **variables):
        self.folder, self.server = folder, server
        self.known = folder / "known_hosts"
        self.reports = folder / "reports"
        self.name = "[127.0.0.1]:%d" % server.port
        ssh = "-F none -o UserKnownHostsFile=%s -o HashKnownHosts=no -o StrictHostKeyChecking=yes" % self.known
        common = {
            "ansible_user": "nobody", "ansible_ssh_args": "", "ansible_ssh_common_args": ssh, "ansible_become": False,
            "fleet_recipe": "node-small", "fleet_recipe_paths": [str(RECIPES)],
            "fleet_hardware": {"accelerator": "cpu", "count": 1, "cores": 2}, "fleet_reports_dir": str(self.reports),
        }  # fmt: skip
        hosts = {
            "n1": {"ansible_host": "127.0.0.1", "ansible_port": server.port, **variables},
            "n2": {"ansible_host": "127.0.0.1", "ansible_port": 1},
            "here": {"ansible_connection": "local"},
        }
        bastion = {"hosts": {"b1": {"ansible_host": "127.0.0.1"}}}
        hosts_file(folder, {name: {**common, **one} for name, one in hosts.items()}, bastions=bastion)

    def play(self, *arguments, playbook="playbooks/replace_node.yml", **options):
        return play(playbook, self.folder / "hosts.yml", *arguments, timeout=600, **options)

    def knows(self, key, *more):
        """Write this key into known_hosts, as the node's, and more lines."""
        self.known.write_text("\n".join([line(self.name, key), *more]) + "\n")

    @property
    def lines(self):
        return self.known.read_text().splitlines()

    def cause(self, host):
        report = json.loads((self.reports / "verdict.json").read_text())
        return report["hosts"][host]["missing"]["cause"]

    def command(self, key):
        return "ansible-playbook playbooks/replace_node.yml -i %s -e fleet_node=n1 -e fleet_host_key=%s" % (
            self.folder / "hosts.yml", key)  # fmt: skip


def line(name, key):
    return "%s %s" % (name, key.export_public_key().decode().strip())


OLD, NEW, RSA = map(asyncssh.generate_private_key, ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp256", "ssh-rsa"))


@pytest.fixture
def server():
    """An SSH server on loopback with two keys, which lets nobody in: its `port`, and the number of `connections`."""
    one, loop = types.SimpleNamespace(connections=0), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)

    def connected():
        one.connections += 1
        return asyncssh.SSHServer()

    async def listen():
        return await asyncssh.listen("127.0.0.1", 0, server_host_keys=[NEW, RSA], server_factory=connected)

    thread.start()
    one.port = asyncio.run_coroutine_threadsafe(listen(), loop).result().get_port()
    yield one
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def test_a_changed_host_key_is_reported_as_such(tmp_path, server):
    fleet = Fleet(tmp_path, server)
    fleet.knows(OLD)
    run = fleet.play("--limit", "n1", playbook="site.yml")
    assert run.status == 4, run.output
    for words in ("its host key has changed to %s (ECDSA), %s:1 has another" % (NEW.get_fingerprint(), fleet.known),
                  fleet.command(NEW.get_fingerprint())):  # fmt: skip
        assert words in flat(run.output) and words in fleet.cause("n1")
    assert "fatal: [n1]: UNREACHABLE!\n    its host key has changed" in run.output
    assert "@@@@" not in run.output and "UNREACHABLE ***" not in run.output, "it is said once"
    assert "Planned, but in no run so far." in fleet.cause("n2")
    fleet.knows(NEW)
    run = fleet.play("--limit", "n1,n2", playbook="playbooks/verify.yml").failed()
    assert run.count("unreachable") == 2
    assert re.match("Unreachable: .*Permission denied", fleet.cause("n1"))
    assert re.match("Unreachable: .*Connection refused", fleet.cause("n2"))


def test_none_or_a_wrong_fingerprint_is_refused_and_the_right_one_replaces(tmp_path, server):
    fleet = Fleet(tmp_path, server)
    fleet.knows(OLD, OTHER, "# mine")
    before = fleet.known.read_bytes()
    run = fleet.play(variables={"fleet_node": "n1"}).failed()
    assert NEW.get_fingerprint() in run.output and RSA.get_fingerprint() in run.output
    assert fleet.command(NEW.get_fingerprint()) in flat(run.output)
    run = fleet.play(variables={"fleet_node": "n1", "fleet_host_key": OLD.get_fingerprint()}).failed()
    assert run.count("unreachable") == 0, "nothing comes after it"
    assert fleet.known.read_bytes() == before

    right = {"fleet_node": "n1", "fleet_host_key": NEW.get_fingerprint()}
    fleet.play("--check", variables=right)
    assert fleet.known.read_bytes() == before
    for variables in (right, {"fleet_node": "n1"}):  # then the key is right already
        run = fleet.play(variables=variables)
        assert fleet.lines == [OTHER, "# mine", line(fleet.name, NEW)]
        assert "Permission denied" in run.output, "site.yml came next, with OpenSSH and the new key"
        assert "n2 " not in run.output
    assert run.count("changed") == 0


def test_any_key_type_may_match_and_that_one_is_written(tmp_path, server):
    fleet = Fleet(tmp_path, server, fleet_host_key=[OLD.get_fingerprint(), RSA.get_fingerprint()])
    fleet.knows(OLD)
    run = fleet.play(variables={"fleet_node": "n1"})
    assert fleet.lines == [line(fleet.name, RSA)]
    assert "Permission denied" in run.output


@pytest.mark.parametrize(("variables", "words"), [
    ({"fleet_node": "here"}, "host-key.connection-without-key"),
    ({"fleet_node": "n2", "fleet_host_key": NEW.get_fingerprint()}, "host-key.not-fetched"),
])  # fmt: skip
def test_invalid_input_is_one_error(tmp_path, server, variables, words):
    fleet = Fleet(tmp_path, server)
    run = fleet.play("-v", variables=variables, environment=DEFAULT).failed()
    assert words in run.output
    assert run.count("failed") == 1
    assert not fleet.known.exists()


def test_a_removed_node_is_not_contacted_and_leaves_known_hosts(tmp_path, server):
    fleet = Fleet(tmp_path, server)
    fleet.knows(OLD, OTHER, "# mine")
    removal = {"fleet_node": "n1", "fleet_remove": True}
    fleet.play(variables=removal).ok()
    assert fleet.lines == [OTHER, "# mine"]
    for node in ("n1", "gone"):  # a node that has left the inventory, too
        assert fleet.play(variables={**removal, "fleet_node": node}).ok().count("changed") == 0
    assert fleet.lines == [OTHER, "# mine"]
    assert server.connections == 0


def test_options_that_ssh_refuses_are_an_error():
    caught = error(host_key._options, ["ssh", "-o", "NoSuchOption=1"], "n1")
    assert caught.code == "host-key.ssh-failed" and "nosuchoption" in caught.message.lower()


@pytest.mark.parametrize(("node", "group", "code"), [
    ("", "abc", "host-key.node-missing"), ("a", "abc", "service.cannot-leave"), ("a", "a", "service.cannot-leave"),
    ("a", "abcd", None), ("d", "abc", None),
])  # fmt: skip
def test_a_service_keeps_a_quorum(node, group, code):
    local = {"ansible_connection": "local"}
    found = {"groups": {"all": [*"abcd"], "etcd": [*group]}, "hostvars": dict.fromkeys("abcd", local)}
    if code:
        assert error(host_key.node_removal, None, {"node": node}, found).code == code
    else:
        assert host_key.node_removal(None, {"node": node}, found)["outdated"] is False
