# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ssh and Ansible print about a host that cannot be reached, as a sentence."""

from __future__ import annotations

import pytest
from ansible.utils.context_objects import CLIArgs
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting import screen

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
    monkeypatch.setattr(screen.context, "CLIARGS", arguments)


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
    ("The ED25519 host key for n1 is marked as revoked.\nHost key verification failed.",
     "Host key verification failed."),
    ("ssh: connect to host 10.0.0.1 port 22: Connection refused",
     "ssh: connect to host 10.0.0.1 port 22: Connection refused"),
    ("debug1: something\nSomething quite new.\n", "Something quite new."),
    ("", "no message was returned"),
    (None, "None"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "reason"), CASES)
def test_the_reason_is_one_sentence(message, reason):
    assert screen.reason(message, "n1") == reason


def test_the_command_can_be_typed_where_the_run_was_started(tmp_path, monkeypatch):
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "playbooks" / "replace_node.yml").write_text("")
    sources = [str(tmp_path / "my hosts"), "/etc/more", "localhost,"]
    monkeypatch.setattr(screen.context, "CLIARGS", CLIArgs({"inventory": sources}))
    assert screen.replace_command("n 1", PRINT) == (
        "ansible-playbook playbooks/replace_node.yml -i 'my hosts' -i /etc/more -i localhost, -e 'fleet_node=n 1' "
        "-e fleet_host_key=" + PRINT
    )
