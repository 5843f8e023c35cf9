# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How OpenSSH reaches a host (ssh -G), and the host keys that it shows there (paramiko)."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.connection.known_hosts import Key

# One connection for each kind: a server shows one key in each. RSA keys have one type and two names of algorithms.
KINDS = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    ("rsa-sha2-512", "rsa-sha2-256"),
)
INSTALL = "python -m pip install 'paramiko>=3.4,<6'"
TOKEN = re.compile(r"%(.)")


class Target:
    """Where ssh goes for a host, and what it looks up there.

    host, port; names: in known_hosts, the first is the one that new keys are written for; files: the user's known_hosts
    files; hashed: whether names are written hashed; algorithms: of host keys that ssh takes; proxy: a command whose
    input and output are the connection, None for a direct one.
    """

    def __init__(self, host, port, names, files, hashed, algorithms, proxy):
        self.host = host
        self.port = port
        self.names = names
        self.files = files
        self.hashed = hashed
        self.algorithms = algorithms
        self.proxy = proxy


def ssh_target(host, arguments=(), ssh="ssh"):
    """The Target of `ssh ARGUMENTS host`, as OpenSSH itself reads its options and configuration. Raises FleetError."""
    try:
        done = subprocess.run([ssh, "-G", *arguments, "--", host], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=60, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FleetError(
            "ssh.client-missing", "%s -G cannot be run: %s. Install OpenSSH's client.", (ssh, error)
        ) from error
    if done.returncode:
        raise FleetError(
            "ssh.options-refused", "%s does not take its options for %s: %s", (ssh, host, done.stderr.strip())
        )
    options = {}
    for line in done.stdout.splitlines():
        key, _blank, value = line.partition(" ")
        options.setdefault(key, value)
    return target_of(host, options, arguments, ssh)


def target_of(host, options, arguments=(), ssh="ssh"):
    """The Target of what `ssh -G` prints, {option: value}."""
    name, port = options["hostname"], int(options["port"])
    plain = "[%s]:%d" if port != 22 else "%s%.0s"
    names = [options.get("hostkeyalias") or plain % (name, port)]
    proxy = _proxy(host, options, arguments, ssh)
    if options.get("checkhostip") == "yes" and not proxy:
        names += [plain % (address, port) for address in _addresses(name, port)]
    files = [one for one in options.get("userknownhostsfile", "").split() if one not in ("none", "/dev/null")]
    if any(not one.startswith("/") for one in files):
        raise FleetError(
            "ssh.known-hosts-path-invalid",
            "UserKnownHostsFile is '%s'; paths without blanks are needed here.",
            (options["userknownhostsfile"],),
        )
    return Target(
        name, port, list(dict.fromkeys(names)), files, options.get("hashknownhosts") == "yes",
        options.get("hostkeyalgorithms", "").split(","), proxy,
    )  # fmt: skip


def _addresses(name, port):
    try:
        return list(dict.fromkeys(one[4][0] for one in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)))
    except OSError:
        return []


def _proxy(host, options, arguments, ssh):
    """The command that connects, [words], of ProxyCommand or ProxyJump; None where ssh connects by itself."""
    jump, command = options.get("proxyjump", "none"), options.get("proxycommand", "none")
    name, port = options["hostname"], options["port"]
    if jump != "none":
        *first, last = jump.split(",")
        # as OpenSSH does it: the configuration file goes on to the jump, other options do not
        given = [part for at, one in enumerate(arguments) if one == "-F" for part in arguments[at : at + 2]]
        more = ["-J", ",".join(first)] if first else []
        return [ssh, *given, *more, "-o", "BatchMode=yes", "-W", "[%s]:%s" % (name, port), *_jump_words(last)]
    if command == "none":
        return None
    known = {"h": name, "n": host, "p": port, "r": options.get("user", ""), "%": "%"}
    unknown = sorted({token for token in TOKEN.findall(command) if token not in known})
    if options.get("proxyusefdpass") == "yes" or unknown:
        what = "ProxyUseFdpass" if not unknown else "%" + unknown[0]
        raise FleetError(
            "ssh.proxy-unsupported",
            "The connection to %s goes through ProxyCommand '%s' with %s, which is not supported here. Replace its "
            "key by "
            "hand: `ssh-keygen -R '%s'`, then `ssh %s` and compare the fingerprint. Then run site.yml --limit it.",
            (host, command, what, options.get("hostkeyalias") or name, host),
        )
    return ["sh", "-c", "exec " + TOKEN.sub(lambda found: known[found.group(1)], command)]


def _jump_words(jump):
    """[user@]host[:port] or ssh://… of a ProxyJump as arguments of ssh."""
    if jump.startswith("ssh://"):
        return ["--", jump]
    user, at, place = jump.rpartition("@")
    match = re.match(r"^\[(.+)\](?::(\d+))?$|^([^:]+):(\d+)$", place)
    host, port = (match.group(1) or match.group(3), match.group(2) or match.group(4)) if match else (place, None)
    return [*(["-p", port] if port else []), "--", user + at + host]


def fetch(target, timeout=15):
    """[Key] that the host shows, one of each kind that it has. It proves that it holds them. Raises FleetError."""
    try:
        import paramiko
    except ImportError as error:
        raise FleetError(
            "ssh.paramiko-missing",
            "The Python package paramiko, which fetches host keys, is not there for the Python that runs Ansible (%s). "
            "Install it: %s",
            (error, INSTALL),
        ) from error
    logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # errors are raised, and that is enough
    found, problem = [], None
    for kind in KINDS:
        wanted = [one for one in kind if one in target.algorithms or not any(target.algorithms)]
        if not wanted:
            continue
        try:
            found.append(_fetch_one(paramiko, target, wanted, timeout))
        except paramiko.SSHException as error:
            problem = problem or error  # most often: the host has no key of this kind
        except (OSError, EOFError) as error:
            problem = error
            break
    if not found:
        raise FleetError(
            "ssh.host-keys-not-fetched",
            "The host keys of %s could not be fetched from %s port %d%s: %s. Is the node up, and is this its address?",
            (
                target.names[0],
                target.host,
                target.port,
                " through `%s`" % shlex.join(target.proxy) if target.proxy else "",
                str(problem) or "the connection was closed",
            ),
        )
    return found


def _fetch_one(paramiko, target, algorithms, timeout):
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(
            _proxied(target.proxy) if target.proxy else socket.create_connection((target.host, target.port), timeout)
        )
        transport = paramiko.Transport(stream)
        stack.callback(transport.close)
        transport.banner_timeout = timeout
        known = transport.get_security_options().key_types
        usable = [one for one in algorithms if one in known]
        if not usable:
            raise paramiko.SSHException("paramiko knows none of %s" % ", ".join(algorithms))
        transport.get_security_options().key_types = usable
        transport.start_client(timeout=timeout)
        return Key(transport.get_remote_server_key().asbytes())


@contextlib.contextmanager
def _proxied(command):
    """A socket whose other end is a command's input and output. An OSError says what it printed where it fails."""
    ours, its = socket.socketpair()
    with ours, its, tempfile.TemporaryFile() as words:
        process = subprocess.Popen(command, stdin=its, stdout=its, stderr=words, start_new_session=True)
        its.close()  # its end is the end of the connection
        try:
            yield ours
        except Exception as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)  # one that failed ends by itself
            words.seek(0)
            said = words.read().decode("utf-8", "replace").strip().splitlines()
            if process.returncode and said:
                raise OSError(said[-1]) from error
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
