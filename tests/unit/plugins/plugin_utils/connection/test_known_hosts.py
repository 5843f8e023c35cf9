# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""known_hosts edited with the real ssh-keygen, and fingerprints as people type them."""

from __future__ import annotations

import base64
import os
import struct
import subprocess

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.connection import known_hosts
from ansible_collections.inference.fleet.plugins.plugin_utils.connection.known_hosts import (
    Key,
    accepted_fingerprints,
    replace,
)


def key(number, kind=b"ssh-ed25519"):
    body = bytes([number]) * 32
    return Key(struct.pack(">I", len(kind)) + kind + struct.pack(">I", len(body)) + body)


OLD, NEW, OTHER, CA = key(1), key(2), key(3), key(4)
TEXT = base64.b64encode(NEW.blob).decode()


@pytest.fixture
def file(tmp_path):
    """Writes a known_hosts of these lines and returns its path."""

    def write(*lines, mode=0o600):
        path = tmp_path / "known_hosts"
        path.write_text("".join(line + "\n" for line in lines))
        path.chmod(mode)
        return str(path)

    return write


def content(path):
    with open(path, encoding="utf-8") as stream:
        return stream.read().splitlines()


def hashed(name, one):
    return "%s %s" % (known_hosts._hashed(name), one.line)


@pytest.mark.parametrize(
    "value",
    [
        NEW.fingerprint,
        NEW.fingerprint + "=",
        "  %s\n" % NEW.fingerprint,
        [NEW.fingerprint],
        "256 %s root@node (ED25519)" % NEW.fingerprint,
        "ssh-ed25519 " + TEXT,
        "ssh-ed25519 %s root@node" % TEXT,
        "node-1 ssh-ed25519 %s" % TEXT,
        "# from the console\n\nssh-ed25519 %s\n" % TEXT,
        [NEW.fingerprint, "ssh-ed25519 " + TEXT],
    ],
)
def test_a_fingerprint_is_taken_as_people_have_it(value):
    assert accepted_fingerprints(value) == [NEW.fingerprint]


def test_several_fingerprints():
    assert accepted_fingerprints([OLD.fingerprint, NEW.fingerprint]) == [OLD.fingerprint, NEW.fingerprint]
    assert accepted_fingerprints("%s\n%s" % (OLD.fingerprint, NEW.fingerprint)) == [OLD.fingerprint, NEW.fingerprint]
    assert accepted_fingerprints(None) == accepted_fingerprints("") == accepted_fingerprints([]) == []


ALLOWED = "allowed: a fingerprint as `SHA256:…` (43 characters follow) or a whole public key, `ssh-ed25519 AAAA…`"
CONSOLE = "On the node's console, `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints it."
MD5 = ":".join(["ab"] * 16)
BARE = NEW.fingerprint.partition(":")[2]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("yes", "fleet_host_key is 'yes'; %s. Here it is neither." % ALLOWED),
        (MD5, "fleet_host_key is '%s'; %s. Here MD5 fingerprints can be forged. %s" % (MD5, ALLOWED, CONSOLE)),
        ("MD5:" + MD5, "fleet_host_key is 'MD5:%s'; %s. Here MD5 fingerprints can be forged. "
                       "%s" % (MD5, ALLOWED, CONSOLE)),
        (BARE, "fleet_host_key is '%s'; %s. Here write SHA256: before it, as in SHA256:%s." % (BARE, ALLOWED, BARE)),
        ("SHA256:abc", "fleet_host_key is 'SHA256:abc'; %s. Here of a SHA256 fingerprint 43 characters of A-Z, a-z, "
                       "0-9, + "
                       "and / stand after SHA256:." % ALLOWED),
        ("sha256:" + BARE, "fleet_host_key is 'sha256:%s'; %s. Here it is neither." % (BARE, ALLOWED)),
        (True, "fleet_host_key is True; %s, or a list of these." % ALLOWED),
        ({"a": 1}, "fleet_host_key is {'a': 1}; %s, or a list of these." % ALLOWED),
        ([7], "fleet_host_key is 7; %s, or a list of these." % ALLOWED),
        (
            "ssh-ed25519 AAAA",
            "fleet_host_key is 'ssh-ed25519 AAAA': what stands after ssh-ed25519 is no public key; it was cut, or "
            "changed on its way. %s" % CONSOLE,
        ),
        (
            "ssh-rsa " + TEXT,
            "fleet_host_key is 'ssh-rsa %s': the key is of type ssh-ed25519; give the host's plain public key, from "
            "/etc/ssh/ssh_host_*_key.pub." % TEXT,
        ),
    ],
)  # fmt: skip
def test_what_is_no_fingerprint_is_refused(value, message):
    with pytest.raises(FleetError) as caught:
        accepted_fingerprints(value)
    assert caught.value.message == message


KEPT = "# a comment"
PLAIN_OTHER = "other " + OTHER.line


@pytest.mark.parametrize(
    ("names", "before", "after"),
    [
        (["node"], ["node " + OLD.line], ["node " + NEW.line]),
        (["node"], [], ["node " + NEW.line]),
        (["node"], [KEPT, "node %s root@node" % OLD.line, "", PLAIN_OTHER],
         [KEPT, "", PLAIN_OTHER, "node " + NEW.line]),
        (["node"], [hashed("node", OLD), PLAIN_OTHER], [PLAIN_OTHER, "node " + NEW.line]),
        (["[node]:2222"], ["[node]:2222 " + OLD.line, "node " + OLD.line],
         ["node " + OLD.line, "[node]:2222 " + NEW.line]),
        (["node"], ["node,other %s both" % OLD.line], ["other %s both" % OLD.line, "node " + NEW.line]),
        (["node"], ["NODE,other " + OLD.line], ["other " + OLD.line, "node " + NEW.line]),
        (["n.example"], ["*.example " + OLD.line], ["*.example,!n.example " + OLD.line, "n.example " + NEW.line]),
        (["[n.example]:22022"], ["[*.example]:22022 " + OLD.line],
         ["[*.example]:22022,![n.example]:22022 " + OLD.line, "[n.example]:22022 " + NEW.line]),
        (["n1"], ["n?,!n9 " + OLD.line], ["n?,!n9,!n1 " + OLD.line, "n1 " + NEW.line]),
        (["node"], ["@cert-authority node " + CA.line, "node " + OLD.line],
         ["@cert-authority node " + CA.line, "node " + NEW.line]),
        (["node"], ["@revoked * " + OLD.line, "node " + OLD.line], ["@revoked * " + OLD.line, "node " + NEW.line]),
        (["node"], ["node " + OLD.line, "node " + NEW.line + " its comment"], ["node " + NEW.line + " its comment"]),
        (["node"], ["node " + OLD.line, "node " + key(9, b"ssh-rsa").line], ["node " + NEW.line]),
        (["node", "10.0.0.1"], ["node,10.0.0.1 " + OLD.line, "10.0.0.1 " + OLD.line], ["node " + NEW.line]),
        (["node"], ["node,10.0.0.1 " + NEW.line], ["node,10.0.0.1 " + NEW.line]),
        (["node"], ["node-2 " + OLD.line, "xnode " + OLD.line],
         ["node-2 " + OLD.line, "xnode " + OLD.line, "node " + NEW.line]),
        (["node"], ["this is no line", "node " + OLD.line], ["this is no line", "node " + NEW.line]),
    ],
)  # fmt: skip
def test_the_lines_of_one_host_are_replaced(file, names, before, after):
    path = file(*before)
    gone, new = replace(path, names, [NEW], add=[NEW])
    assert content(path) == after
    assert (gone != [] or new != []) == (before != after)
    assert replace(path, names, [NEW], add=[NEW]) == ([], []), "a second time changes nothing"
    found = subprocess.run(
        ["ssh-keygen", "-F", names[0], "-f", path], capture_output=True, text=True, check=True
    ).stdout
    assert TEXT in found


def test_check_mode_says_the_same_and_writes_nothing(file):
    path = file("node " + OLD.line)
    wanted = (["node " + OLD.line], ["node " + NEW.line])
    assert replace(path, ["node"], [NEW], add=[NEW], check=True) == wanted
    assert content(path) == ["node " + OLD.line]
    assert replace(path, ["node"], [NEW], add=[NEW]) == wanted


def test_a_name_is_written_hashed_where_ssh_does_so(file):
    path = file(PLAIN_OTHER)
    replace(path, ["node"], [NEW], hashed=True, add=[NEW])
    assert content(path)[0] == PLAIN_OTHER
    assert content(path)[1].startswith("|1|")
    assert known_hosts.known_keys(path, ["node"]) == {NEW.fingerprint}
    assert replace(path, ["node"], [NEW], hashed=True, add=[NEW]) == ([], [])


def test_a_file_that_another_key_was_taken_from_gets_none(file):
    path = file("node " + OLD.line, PLAIN_OTHER)
    assert replace(path, ["node"], [NEW]) == (["node " + OLD.line], [])
    assert content(path) == [PLAIN_OTHER]


def test_mode_link_and_bytes_stay(tmp_path, file):
    path = file("node " + OLD.line, mode=0o644)
    with open(path, "ab") as stream:
        stream.write(b"caf\xe9 " + OTHER.line.encode() + b"\r\nlast " + OTHER.line.encode())
    link = tmp_path / "link"
    link.symlink_to(path)
    replace(str(link), ["node"], [NEW], add=[NEW])
    assert link.is_symlink()
    assert os.stat(path).st_mode & 0o777 == 0o644
    with open(path, "rb") as stream:
        assert stream.read() == b"caf\xe9 %s\r\nlast %s\nnode %s\n" % tuple(
            one.line.encode() for one in (OTHER, OTHER, NEW)
        )
    assert sorted(os.listdir(tmp_path)) == ["known_hosts", "link"], "nothing is left beside"


def test_a_missing_file_is_made_for_its_owner_alone(tmp_path):
    path = tmp_path / "ssh" / "known_hosts"
    replace(str(path), ["node"], [NEW], add=[NEW])
    assert content(path) == ["node " + NEW.line]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_revoked_key_is_refused(file):
    path = file("node " + OLD.line, "@revoked node " + NEW.line)
    with pytest.raises(FleetError) as caught:
        replace(path, ["node"], [NEW], add=[NEW])
    assert caught.value.message == "%s line 2 says that the key %s is revoked. Nothing was changed." % (
        path, NEW.fingerprint)  # fmt: skip
    assert content(path) == ["node " + OLD.line, "@revoked node " + NEW.line]


def test_a_file_that_cannot_be_written_stays(tmp_path):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "known_hosts")
    with pytest.raises(FleetError) as caught:
        replace(path, ["node"], [NEW], add=[NEW])
    assert caught.value.message == "%s cannot be read: Not a directory." % path


def test_what_others_write_meanwhile_is_kept(file, monkeypatch):
    """ssh appends to known_hosts without a lock."""
    path, validate, done = file("node " + OLD.line), known_hosts._validate, []

    def append(*arguments):
        validate(*arguments)
        if not done:
            done.append(True)
            with open(path, "a", encoding="utf-8") as stream:
                stream.write(PLAIN_OTHER + "\n")

    monkeypatch.setattr(known_hosts, "_validate", append)
    replace(path, ["node"], [NEW], add=[NEW])
    assert content(path) == [PLAIN_OTHER, "node " + NEW.line]
