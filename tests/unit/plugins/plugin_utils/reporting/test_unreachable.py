# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ssh and Ansible print about a host that cannot be reached, as a sentence."""

from __future__ import annotations

import pytest
from ansible.utils.context_objects import CLIArgs
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import unreachable

SSH = "Failed to connect to the host via ssh: "
PRINT = "SHA256:9XbXTPMxqNbKM1rRFYN3GEHyrvHkDTHbW9vnGMVjkVo"
CHANGED = (
    """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
The fingerprint for the ED25519 key sent by the remote host is
%s.
Please contact your system administrator.
Offending ECDSA key in /home/me/.ssh/known_hosts:17
Host key for n1.example has changed and you have requested strict checking.
Host key verification failed."""
    % PRINT
)
COMMAND = "ansible-playbook inference.fleet.replace_node -i inventories/x -e fleet_node=n1"


@pytest.fixture(autouse=True)
def started_in(tmp_path, monkeypatch):
    """A folder without playbooks, from which the run was started with -i inventories/x."""
    monkeypatch.chdir(tmp_path)
    arguments = CLIArgs({"inventory": [str(tmp_path / "inventories" / "x")]})
    monkeypatch.setattr(unreachable.context, "CLIARGS", arguments)


CASES = [
    (SSH + CHANGED, "its host key has changed to %s (ED25519), /home/me/.ssh/known_hosts:17 has another; if the node "
                    "was "
     "replaced, and that is its fingerprint: %s -e fleet_host_key=%s" % (PRINT, COMMAND, PRINT)),
    ("Host key for n1 has changed and you have requested strict checking.\r\nHost key verification failed.",
     "its host key has changed; if the node was replaced, and that is its fingerprint: %s -e "
     "fleet_host_key=SHA256:…" % COMMAND),
    ("No ED25519 host key is known for n1 and you have requested strict checking.\r\nHost key verification failed.",
     "its host key is not in known_hosts; %s shows it" % COMMAND),
    ("Host key verification failed.", "its host key is not in known_hosts; %s shows it" % COMMAND),
    ("@ WARNING: REVOKED HOST KEY DETECTED! @\nThe ED25519 host key for n1 is marked as revoked.\nHost key "
     "verification "
     "failed.", "its host key is one that known_hosts marks as revoked; do not connect before you know why"),
    ("ssh: Could not resolve hostname n1.example: Name or service not known",
     "its name n1.example cannot be resolved (Name or service not known); see ansible_host, or the name server"),
    ("ssh: Could not resolve hostname n1: Temporary failure in name resolution",
     "its name n1 cannot be resolved (Temporary failure in name resolution); see ansible_host, or the name server"),
    ("ssh: connect to host 10.0.0.1 port 22: Connection refused",
     "connection refused: nothing listens on its ssh port. It may be booting, or ansible_port is another"),
    ("ssh: connect to host 10.0.0.1 port 22: No route to host", "no route to it: it is down, or a network between is"),
    ("ssh: connect to host 10.0.0.1 port 22: Network is "
     "unreachable", "no route to it: it is down, or a network between is"),
    ("ssh: connect to host 10.0.0.1 port 22: Connection timed out",
     "no answer in time: it is down, or a firewall drops the packets"),
    ("Connection timed out during banner exchange", "no answer in time: it is down, or a firewall drops the packets"),
    ("ubuntu@n1: Permission denied (publickey,password).",
     "the login is refused (publickey,password); see ansible_user and ansible_ssh_private_key_file"),
    ("Invalid/incorrect password: Permission denied, please try again.",
     "the login is refused (password); see ansible_user and ansible_ssh_private_key_file"),
    ("@ WARNING: UNPROTECTED PRIVATE KEY FILE! @\nubuntu@n1: Permission denied (publickey).",
     "ssh does not use a private key or configuration that others may change or read; chmod 600 it"),
    ("Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures",
     "the node refuses after too many keys were offered; name one with ansible_ssh_private_key_file and "
     "IdentitiesOnly=yes"),
    ("Unable to negotiate with 10.0.0.1 port 22: no matching host key type found. Their offer: ssh-rsa",
     "ssh and the node have no host key type in common"),
    ("Timeout (12s) waiting for privilege escalation prompt: ",
     "become waits for a password that it does not get; give it with --ask-become-pass, or allow sudo without"),
    ("Failed to create temporary directory. In some cases, you may have been able to authenticate and did not have "
     "permissions on the target directory.",
     "the login works, but no temporary directory can be made there: is its disk full or read-only, or the home of "
     "another?"),
    ("kex_exchange_identification: read: Connection reset by peer", "the connection broke; the node may be rebooting"),
    ("Connection closed by UNKNOWN port 65535", "the connection broke; the node may be rebooting"),
    ("channel 0: open failed: connect failed: No route to host\nstdio forwarding failed",
     "no route to it: it is down, or a network between is"),
    ("unix_listener: path \"/x\" too long for Unix domain socket",
     "ssh's control path is too long; set a shorter control_path_dir in ansible.cfg"),
    ("debug1: something\nSomething quite new.\n", "Something quite new."),
    ("", "nothing was said about why"),
    (None, "None"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "reason"), CASES)
def test_the_reason_is_one_sentence(message, reason):
    assert unreachable.reason(message, "n1") == reason


def test_the_command_can_be_typed_where_the_run_was_started(tmp_path, monkeypatch):
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "replace_node.yml").write_text("")
    sources = [str(tmp_path / "my hosts"), "/etc/more", "localhost,"]
    monkeypatch.setattr(unreachable.context, "CLIARGS", CLIArgs({"inventory": sources}))
    assert unreachable.replace_command("n 1", PRINT) == (
        "ansible-playbook playbooks/replace_node.yml -i 'my hosts' -i /etc/more -i localhost, -e 'fleet_node=n 1' "
        "-e fleet_host_key=" + PRINT
    )
