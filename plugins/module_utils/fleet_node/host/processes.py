# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes and sockets of this node, from /proc: processes that use ports, and processes and memory of servers."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import pwd
import re
import signal
import socket
import struct
import time
from typing import NamedTuple

from .files import names_in, readable_json
from .paths import NodePaths

SECRET_OPTION = re.compile(
    r"(?i)(?<![\w-])((?=\w*-[\w-]*?(?:key|token|secret|password|passwd|auth|credential))[\w-]+)"
    r"(?:(=)\S+|( )\S+(?: [^-\s]\S*)*)"
)
SECRET_WORD = re.compile(r"(?i)\b(bearer |hf_|sk-)[\w.-]{4,}|(?<=://)[^\s/@]+(?=@)")
MASK = "********"
MARKER_SERVER = "INFERENCE_FLEET_SERVER"  # both are in the environment of all that the guard starts
MARKER_ROOT = "INFERENCE_FLEET_ROOT"
CONTAINER = re.compile(rb"/(?:docker|libpod|cri-containerd|crio|kubepods|containerd)[-/.]")  # in a cgroup's path
USER_SLICE = re.compile(rb"/user-(\d+)\.slice")
LOOKS = 50  # checks of a process that shows no variables, LOOK_S apart, since it may be in the middle of execve
LOOKS_WITH_ARGUMENTS = 5  # the same for a process that shows arguments: execve may have ended in between
LOOK_S = 0.001
PF_KTHREAD = 0x00200000  # include/linux/sched.h
ENDED = ("Z", "X")  # states of processes that only wait to be forgotten
LISTEN, ESTABLISHED = "0A", "01"  # TCP_LISTEN and TCP_ESTABLISHED in include/net/tcp_states.h
WILDCARDS = frozenset(("", "*", "0.0.0.0", "::"))


class Process(NamedTuple):
    """A line of /proc/PID/stat: state (a letter), parent (pid), session, kernel (a kernel's own thread), used (clock
    ticks of processor time, with those of children that it waited for), ticks (start, in clock ticks after boot)."""

    state: str
    parent: int
    session: int
    kernel: bool
    used: int
    ticks: int


def process(pid):
    """The Process with this pid, or None. A zombie is a Process with the state "Z"."""
    try:
        text = shown(pid, "stat")
    except OSError:
        return None
    fields = text[text.rfind(b")") + 2 :].split()  # the name before it may contain blanks and brackets
    if len(fields) < 20:
        return None
    state, (parent, session, flags, ticks) = fields[0].decode("ascii"), [int(fields[at]) for at in (1, 3, 6, 19)]
    return Process(state, parent, session, bool(flags & PF_KTHREAD), sum(map(int, fields[11:15])), ticks)


def catches(pid, sign):
    """Whether a process has a handler of this signal, which could end it otherwise."""
    return bool((_field(pid, "status", b"SigCgt", 16) or 0) >> (sign - 1) & 1)


def contained(pid):
    """Whether a process is in another PID namespace than this process, as in a container."""
    try:
        return os.readlink("/proc/%d/ns/pid" % pid) != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def account_gone(name):
    """A clause about an account that does not exist any more, or None."""
    try:
        if name and not name.isdigit():
            pwd.getpwnam(name)
    except KeyError:
        return "the account %s that it runs as is not on this node any more; run site.yml, or create it again" % name
    return None


def process_table():
    """{pid: Process} of all processes without zombies and threads of the kernel."""
    found = {pid: _program(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    return {pid: one for pid, one in found.items() if one}


def _program(pid):
    """The Process with this pid; None for one that has ended, and for a thread of the kernel."""
    found = process(pid)
    return None if found is None or found.state in ENDED or found.kernel else found


def environment_of(pid):
    """{bytes: bytes} that the process was executed with; empty if it has ended or is not readable."""
    text, whole = b"", 0
    try:
        for _look in range(LOOKS):
            text = shown(pid, "environ")
            if text or not _program(pid):
                break
            whole += bool(shown(pid, "cmdline"))
            if whole == LOOKS_WITH_ARGUMENTS:
                break
            time.sleep(LOOK_S)
    except OSError:
        return {}
    return dict(item.split(b"=", 1) for item in text.split(b"\0") if b"=" in item)


def shown(pid, name):
    """The bytes of /proc/PID/NAME. Raises OSError."""
    with open("/proc/%d/%s" % (pid, name), "rb") as stream:
        return stream.read()


def markers_of(pid):
    """(root, server) from the environment of a process that a guard started, else None. The system's root is "/"."""
    environment = environment_of(pid)
    server = environment.get(MARKER_SERVER.encode())
    root = environment.get(MARKER_ROOT.encode())
    return None if server is None or root is None else (os.fsdecode(root), os.fsdecode(server))


def accounts(root):
    """Yields the uids of the accounts that run servers of this root: root, this process's, and those of its folders and
    deployed entries, which other accounts cannot write. The entries are read last, because most callers need none."""
    paths = NodePaths("" if root == "/" else root)
    yield from (0, os.geteuid())
    for folder in (paths.servers, paths.state):
        with contextlib.suppress(OSError):
            yield os.stat(folder).st_uid
    with contextlib.suppress(OSError):
        for name in names_in(paths.servers, suffix=".json"):
            entry = readable_json(paths.entry(name))
            with contextlib.suppress(KeyError, TypeError):
                yield pwd.getpwnam(entry["user"]).pw_uid


def is_of(pid, root):
    """Whether a process is of an account of this root, or in a container that one of them started. Every account can
    set the markers of a server."""
    try:
        if os.stat("/proc/%d" % pid).st_uid in accounts(root):
            return True
        group = shown(pid, "cgroup")
    except OSError:
        return False
    return bool(CONTAINER.search(group)) and {int(uid) for uid in USER_SLICE.findall(group)} <= set(accounts(root))


_examined = contextvars.ContextVar("examined", default=None)  # {root: marked_processes(root)} in examined_once()


@contextlib.contextmanager
def examined_once():
    """Within it, marked_processes() examines all processes once: for a caller that changes nothing."""
    token = _examined.set({})
    try:
        yield
    finally:
        _examined.reset(token)


def marked_processes(root):
    """{server: sorted pids} of this root's servers: the marked processes and their descendants.

    Processes with an empty environment are found by their parents. This process and its ancestors are omitted.
    """
    examined = _examined.get()
    if examined is None:
        return _marked_processes(root)
    if root not in examined:
        examined[root] = _marked_processes(root)
    return examined[root]


def server_pids(root):
    """[pid] of all servers of this root."""
    return [pid for pids in marked_processes(root).values() for pid in pids]


def _marked_processes(root):
    table = process_table()
    spared = set()
    pid = os.getpid()
    while pid in table and pid not in spared:
        spared.add(pid)
        pid = table[pid].parent
    server_of = {}
    for pid in table:
        markers = markers_of(pid)
        if markers is not None and markers[0] == (root or "/") and is_of(pid, root):
            server_of[pid] = markers[1]
    _add_descendants(table, server_of)
    servers = {}
    for pid in sorted(set(server_of) - spared):
        servers.setdefault(server_of[pid], []).append(pid)
    return servers


def _add_descendants(table, owners):
    """Add all processes that those of `owners` {pid: owner} started, with the same owner."""
    more = owners
    while more:
        more = {pid: owners[one.parent] for pid, one in table.items() if one.parent in more and pid not in owners}
        owners.update(more)


def with_children(pids):
    """{pids} of processes and of all that they started."""
    found = dict.fromkeys(pids)
    _add_descendants(process_table(), found)
    return set(found)


def terminate_found(find, term_s, kill_s):
    """End the processes that find() returns: TERM, up to term_s seconds, KILL, up to kill_s seconds.

    find() is called repeatedly, so processes that are forked meanwhile are ended too. Returns the pids that survived.
    """
    for sign, seconds in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        signalled = set()
        end = time.monotonic() + seconds
        pause = 0.02
        while True:
            alive = set(find())
            if not alive:
                return []
            for pid in alive - signalled:
                signalled.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sign)
                    os.kill(pid, signal.SIGCONT)  # as systemd does: a stopped process would not see TERM
            if time.monotonic() >= end:
                break
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)
    return sorted(find())


def connections(port):
    """Number of TCP connections of clients to a port, in the network namespace of this process."""
    return sum(1 for _family, fields in _sockets(ESTABLISHED) if int(fields[1].split(":")[1], 16) == port)


def listening_sockets():
    """[(address, port, inode, uid)] of all TCP sockets that listen, IPv4 and IPv6. IPv4-mapped addresses read as
    IPv4."""
    found = []
    for family, fields in _sockets(LISTEN):
        address, port = fields[1].split(":")
        found.append((_address(address, family), int(port, 16), int(fields[9]), int(fields[7])))
    return found


def _sockets(state):
    """[(family, the kernel's fields)] of the TCP sockets in a state."""
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            with open("/proc/net/" + name, encoding="ascii") as stream:
                lines = stream.readlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        found += [(family, fields) for fields in map(str.split, lines) if fields[3] == state]
    return found


def _address(text, family):
    """The kernel prints each 32-bit word of an address in the machine's byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    address = socket.inet_ntop(family, struct.pack("=%dI" % len(words), *words))
    return address[7:] if address.startswith("::ffff:") and "." in address else address


def _overlap(bind, address):
    if bind in WILDCARDS or address in WILDCARDS:
        return True
    return ("127.0.0.1" if bind == "localhost" else bind.strip("[]")) == address


def open_to_all(bind, port, sockets):
    """The wildcard address on which a server listens although it is bound to another address, or None.

    sockets: listening_sockets(). With bind 127.0.0.1, a server that ignores the address would serve the entire network.
    """
    if bind in WILDCARDS:
        return None
    return next((one[0] for one in sockets if one[1] == port and one[0] in WILDCARDS), None)


class Sockets:
    """The TCP sockets that listen at one time, and the processes with sockets: reading those of all processes is slow,
    so those that likely() returns ([pid]) are read first."""

    def __init__(self, likely=list):
        self.listeners = listening_sockets()
        self._likely = likely

    def owner(self, inode):
        """The process with this socket, the first by pid; None if none is visible."""
        return self._likely_owners.get(inode) or self._owners.get(inode)

    @functools.cached_property
    def _likely_owners(self):
        return _owners(self._likely())

    @functools.cached_property
    def _owners(self):
        return _owners(process_table())


def port_holder(bind, port, sockets=None):
    """The listener on the port of a server bound to (bind, port), or None. Wildcards on either side count.

    {pid, command, user, server, root}: pid and command are None if the process is not visible (the user always is);
    server and root are set if the process belongs to a server. sockets: Sockets that were read before.
    """
    sockets = sockets or Sockets()
    found = {inode: uid for at, number, inode, uid in sockets.listeners if number == port and _overlap(bind, at)}
    return next(iter(_holders(found, sockets)), None)


def port_holders(bind, port, sockets=None):
    """[port_holder()] of all sockets that a request to a server bound to (bind, port) can reach.

    A socket of the address precedes a wildcard socket; several may share a port (SO_REUSEPORT).
    """
    from .http_client import connect_host  # what the guard starts without

    host = connect_host(bind)
    host = "127.0.0.1" if host == "localhost" else host
    sockets = sockets or Sockets()
    found = [(address, inode, uid) for address, number, inode, uid in sockets.listeners if number == port]
    for reached in ((host,), ("0.0.0.0",) if ":" not in host else (), ("::",)):
        listeners = {inode: uid for address, inode, uid in found if address in reached}
        if listeners:
            return _holders(listeners, sockets)
    return []


def _holders(listeners, sockets):
    """[{pid, command, user, server, root}] of sockets ({inode: uid}) by pid; invisible processes are last."""
    held = {}
    for inode in sorted(listeners):
        held.setdefault(sockets.owner(inode), []).append(user_name(listeners[inode]))
    holders = []
    for pid in sorted(held.keys() - {None}):
        root, server = markers_of(pid) or (None, None)
        if root is not None and not (os.path.isabs(root) and is_of(pid, root)):
            root = server = None
        holders.append({"pid": pid, "command": command(pid), "user": held[pid][0], "server": server, "root": root})
    for user in held.get(None, ()):
        holders.append({"pid": None, "command": None, "user": user, "server": None, "root": None})
    return holders


def _owners(pids):
    """{inode: the first of these processes with this socket}"""
    found = {}
    for pid in sorted(pids):
        for target in open_files(pid):
            if target.startswith("socket:["):
                found.setdefault(int(target[8:-1]), pid)
    return found


def open_files(pid):
    """{paths} of the process's open files, "socket:[INODE]" for a socket; empty if not readable."""
    folder = "/proc/%d/fd" % pid
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found.add(os.readlink("%s/%s" % (folder, name)))
    return found


def user_name(uid):
    """The user's name, or the number as a string."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def masked(text):
    """A command line with its keys and passwords masked."""
    return SECRET_WORD.sub(MASK, SECRET_OPTION.sub(r"\1\2\3" + MASK, text))


def command(pid):
    """The process's masked argv joined by blanks, or its short name in brackets; None if it has ended."""
    try:
        text = shown(pid, "cmdline").rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
        return masked(text) if text else "[%s]" % shown(pid, "comm").decode("utf-8", "replace").strip()
    except OSError:
        return None


def argv(pid):
    """The process's argv as a list of str (undecodable bytes as surrogates); empty if it has ended."""
    try:
        return [os.fsdecode(item) for item in shown(pid, "cmdline").split(b"\0")[:-1]]
    except OSError:
        return []


def terminate(pids, term_s, kill_s):
    """End these processes: TERM, up to term_s seconds, KILL, up to kill_s seconds. Returns the pids that survived.

    A pid that belongs to another process by then is left alone; a zombie counts as ended.
    """
    began = {pid: _program(pid) for pid in pids}

    def alive():
        for pid, first in began.items():
            found = _program(pid)
            if first and found and found.ticks == first.ticks:
                yield pid

    return terminate_found(alive, term_s, kill_s)


def memory_mib(pids):
    """Memory of these processes in MiB: proportional set size if readable, else resident set size.

    None if none of them is readable.
    """
    sizes = [_field(pid, "smaps_rollup", b"Pss") or _field(pid, "status", b"VmRSS") for pid in pids]
    sizes = [kib for kib in sizes if kib is not None]
    return round(sum(sizes) / 1024) if sizes else None


def _field(pid, name, field, base=10):
    """The number in a line of /proc/PID/NAME, or None."""
    try:
        found = re.search(rb"(?m)^%s:\s*([0-9a-f]+)" % field, shown(pid, name))
    except OSError:
        return None
    return found and int(found.group(1), base)


def started_at(pid):
    """Start time of the process in epoch seconds (float), or None if it has ended."""
    found = _program(pid)
    if found is None:
        return None
    with open("/proc/stat", encoding="ascii") as stream:
        boot = next(int(line.split()[1]) for line in stream if line.startswith("btime "))
    return boot + found.ticks / os.sysconf("SC_CLK_TCK")
