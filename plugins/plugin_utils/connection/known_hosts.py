# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host keys in known_hosts: fingerprints as people give them, and the lines of one host replaced by its new keys.

ssh-keygen finds a host's lines, hashed names and patterns included. Its -R is not used: it deletes the whole line, also
where that names other hosts.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fnmatch
import hashlib
import hmac
import os
import re
import struct
import subprocess
import tempfile

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError

FINGERPRINT = re.compile(r"^SHA256:([A-Za-z0-9+/]{43})=?$")
BARE = re.compile(r"^[A-Za-z0-9+/]{43}=?$")
MD5 = re.compile(r"^(MD5:)?([0-9a-fA-F]{2}:){15}[0-9a-fA-F]{2}$")
KEY_TYPE = re.compile(r"^(ssh-|ecdsa-|sk-|rsa-sha2-)[a-z0-9@.-]+$")
FOUND = re.compile(r"^# Host .* found: line (\d+)(?: (CA|REVOKED))?\s*$")
HOW = "On the node's console, `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints it."
ALLOWED = "a fingerprint as `SHA256:…` (43 characters follow) or a whole public key, `ssh-ed25519 AAAA…`"
TRIES = 5


class Key:
    """A host key: its type, its bytes as they go over the wire, and its fingerprint as OpenSSH prints it."""

    def __init__(self, blob):
        self.blob = blob
        (length,) = struct.unpack(">I", blob[:4])
        self.type = blob[4 : 4 + length].decode("ascii")
        self.fingerprint = "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")

    @property
    def line(self):
        """Type and key as a line of known_hosts has them after the names."""
        return "%s %s" % (self.type, base64.b64encode(self.blob).decode("ascii"))


# ---- what the operator gives


def accepted_fingerprints(value):
    """The fingerprints that fleet_host_key holds: a string of one or more lines, or a list of such; [] for none.

    Raises FleetError that names the bad one.
    """
    if value is None:
        return []
    values = value if isinstance(value, (list, tuple)) else [value]
    found = []
    for one in values:
        if not isinstance(one, str):
            raise FleetError(
                "host-key.expected-not-a-string",
                "fleet_host_key is %r; allowed: %s, or a list of these.",
                (one, ALLOWED),
            )
        for line in one.splitlines():
            if line.strip() and not line.strip().startswith("#"):
                found.append(_fingerprint(line.strip()))
    return list(dict.fromkeys(found))


def _fingerprint(line):
    """The fingerprint in a line: alone, as `ssh-keygen -l` prints it, or of a public key, bare or in known_hosts."""
    words = line.split()
    prints = [word.rstrip("=") for word in words if FINGERPRINT.match(word)]
    if len(prints) == 1:
        return prints[0]
    problem = "it is neither"
    for position, word in enumerate(words[:-1]):
        if KEY_TYPE.match(word):
            return _fingerprint_of(line, word, words[position + 1])
    if any(MD5.match(word) for word in words):
        problem = "MD5 fingerprints can be forged. " + HOW
    elif len(words) == 1 and BARE.match(line):
        problem = "write SHA256: before it, as in SHA256:%s" % line
    elif any(word.startswith("SHA256:") for word in words):
        problem = "of a SHA256 fingerprint 43 characters of A-Z, a-z, 0-9, + and / stand after SHA256:"
    raise FleetError(
        "host-key.expected-invalid",
        "fleet_host_key is '%s'; allowed: %s. Here %s.",
        (_cut(line), ALLOWED, problem.rstrip(".")),
    )


def _fingerprint_of(line, kind, text):
    try:
        blob = base64.b64decode(text, validate=True)
        key = Key(blob)
    except (binascii.Error, ValueError, struct.error):
        raise FleetError(
            "host-key.expected-damaged",
            "fleet_host_key is '%s': what stands after %s is no public key; it was cut, or changed on its way. %s",
            (_cut(line), kind, HOW),
        ) from None
    if key.type != kind or "-cert-" in kind:
        raise FleetError(
            "host-key.expected-type-unusable",
            "fleet_host_key is '%s': the key is of type %s; give the host's plain public key, from "
            "/etc/ssh/ssh_host_*_key.pub.",
            (_cut(line), key.type if key.type != kind else kind),
        )
    return key.fingerprint


def _cut(text, limit=80):
    return text if len(text) <= limit else text[: limit - 1] + "…"


# ---- the files


def known_keys(path, names):
    """{fingerprint} of the keys that the file has for one of these names; those of authorities and revoked ones not."""
    try:
        lines = _read(path)
    except OSError as error:
        raise FleetError("known-hosts.unreadable", "%s cannot be read: %s.", (path, error.strerror)) from error
    return {
        _blob_print(lines[number])
        for name in names
        for number, marker in found_lines(path, name)
        if marker is None
    } - {None}  # fmt: skip


def found_lines(path, name):
    """[(index of the line, None or CA or REVOKED)] that OpenSSH finds for `name` in a file. Raises FleetError."""
    if not os.path.isfile(path):
        return []
    done = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", path], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="surrogateescape", env={**os.environ, "LC_ALL": "C"}, check=False,
    )  # fmt: skip
    if done.returncode and done.stderr.strip():
        raise FleetError(
            "known-hosts.search-failed", "%s cannot be searched: %s", (path, done.stderr.strip().splitlines()[-1])
        )
    found = (FOUND.match(line) for line in done.stdout.splitlines())
    return [(int(match.group(1)) - 1, match.group(2)) for match in found if match]


def replace(path, names, keys, hashed=False, add=(), check=False):
    """Take the host's other keys out of a file and put new ones in. Returns ([lines gone], [lines new]).

    names: what the host is looked up by; keys: [Key] that are right, and stay where they stand; add: those of them that
    the file must have for names[0] in the end; hashed: write the name hashed. Lines of other hosts, authorities,
    revoked keys, comments, mode and owner stay. A link stays one. Raises FleetError; then the file is as it was.
    """
    real = os.path.realpath(path)
    for _try in range(TRIES):
        try:
            before, lines = _status(real), _read(real)
        except OSError as error:
            raise FleetError("known-hosts.unreadable", "%s cannot be read: %s.", (path, error.strerror)) from error
        changed, gone, new = _edited(real, lines, names, keys, hashed, add)
        if changed == lines or check:
            return gone, new
        try:
            if _write(real, changed, before, names, keys, add):
                return gone, new
        except OSError as error:
            raise FleetError(
                "known-hosts.not-writable", "%s cannot be written: %s. It is as it was.", (path, error.strerror)
            ) from error
    raise FleetError(
        "known-hosts.changed-meanwhile",
        "%s is changed by others all the time; it is as they left it. Run again.",
        (path,),
    )


def _edited(path, lines, names, keys, hashed, add):
    """(new lines, [removed], [added]) of a file, as bytes and as text."""
    right = {key.fingerprint for key in keys}
    result, gone, new, there = list(lines), [], [], set()
    for name in names:
        for number, marker in found_lines(path, name):
            line = result[number]
            if line is None:
                continue
            found = _blob_print(line)
            if marker == "REVOKED" and found in right:
                message = "%s line %d says that the key %s is revoked. Nothing was changed."
                raise FleetError("known-hosts.key-revoked", message, (path, number + 1, found))
            if marker is None and found in right:
                if name == names[0]:
                    there.add(found)
            elif marker is None:
                result[number] = _without(line, name)
                gone.append(_text(line))
                new += [_text(result[number])] if result[number] is not None else []
    result = [line for line in result if line is not None]
    if result and not result[-1].endswith(b"\n") and any(key.fingerprint not in there for key in add):
        result[-1] += b"\n"
    for key in add:
        if key.fingerprint not in there:
            line = "%s %s\n" % (_hashed(names[0]) if hashed else names[0], key.line)
            result.append(line.encode("utf-8"))
            new.append(line.rstrip("\n"))
    return result, gone, new


def _without(line, name):
    """A line that does not hold for `name` any more; None where it held for no other."""
    hosts, rest = line.split(None, 1)
    patterns = hosts.decode("utf-8", "surrogateescape").split(",")
    left = [one for one in patterns if one.lower() != name.lower() and not one.startswith("|1|")]
    if not any(not one.startswith("!") for one in left):
        return None
    if any(_matches(one, name) for one in left):
        left.append("!" + name)
    start = line[: len(line) - len(line.lstrip())]
    return start + ",".join(left).encode("utf-8", "surrogateescape") + b" " + rest


def _matches(pattern, name):
    """Whether a pattern of known_hosts, in which * and ? stand for others, is one of the name."""
    escaped = pattern.replace("[", "[[]")
    return fnmatch.fnmatchcase(name.lower(), escaped.lower())


def _blob_print(line):
    """The fingerprint of the key in a line of known_hosts, None where there is none."""
    words = line.split()
    words = words[1:] if words and words[0].startswith(b"@") else words
    try:
        return Key(base64.b64decode(words[2], validate=True)).fingerprint
    except (IndexError, binascii.Error, ValueError, struct.error):
        return None


def _hashed(name):
    """A name as HashKnownHosts has it."""
    salt = os.urandom(20)
    digest = hmac.new(salt, name.encode("utf-8"), hashlib.sha1).digest()
    return "|1|%s|%s" % tuple(base64.b64encode(part).decode("ascii") for part in (salt, digest))


def _read(path):
    """The lines of a file as bytes, with their ends; [] where there is none. Raises OSError."""
    try:
        with open(path, "rb") as stream:
            return stream.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []


def _text(line):
    return line.decode("utf-8", "surrogateescape").strip()


def _status(path):
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode & 0o7777, found.st_uid, found.st_gid)


def _write(path, lines, before, names, keys, add):
    """Put the lines in place unless somebody changed the file meanwhile; whether it was done. Raises OSError."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".known_hosts.", dir=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(b"".join(lines))
            stream.flush()
            os.fsync(stream.fileno())
        if before:
            if (os.getuid(), os.getgid()) != before[4:]:
                os.chown(temporary, *before[4:])
            os.chmod(temporary, before[3])
        _validate(temporary, path, names, keys, add)
        if _status(path) != before:
            return False
        os.rename(temporary, path)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _validate(temporary, path, names, keys, add):
    """FleetError unless OpenSSH finds in the new file what it should, and no more."""
    right = {key.fingerprint for key in keys}
    wrong = {one for name in names for one in known_keys(temporary, [name])} - right
    if wrong or not {key.fingerprint for key in add} <= known_keys(temporary, names[:1]):
        raise FleetError(
            "known-hosts.line-unknown",
            "The keys of %s in %s cannot be replaced: a line there is of another form. Edit it by hand: "
            "`ssh-keygen -F '%s' -f %s` shows the host's "
            "lines.",
            (names[0], path, names[0], path),
        )
