# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes and listening sockets of this node, from /proc alone: who holds a port, what runs of a server, how much."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct

from ansible_collections.inference.fleet.plugins.module_utils.node import http_client
from ansible_collections.inference.fleet.plugins.module_utils.supervise import guard

LISTEN = "0A"  # TCP_LISTEN in include/net/tcp_states.h
WILDCARDS = frozenset(("", "*", "0.0.0.0", "::"))


def listening_sockets():
    """[(address, port, inode)] of all TCP sockets that listen, IPv4 and IPv6. IPv4-mapped addresses read as IPv4."""
    return [(address, port, inode) for address, port, inode, uid in _listeners()]


def _listeners():
    found = []
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        try:
            with open("/proc/net/" + name, encoding="ascii") as stream:
                lines = stream.readlines()[1:]
        except OSError:  # a kernel without IPv6
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == LISTEN:
                address, port = fields[1].split(":")
                found.append((_address(address, family), int(port, 16), int(fields[9]), int(fields[7])))
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


def is_narrow(bind):
    """Whether a server bound to this address is not meant to be reached through all of them."""
    return bind not in WILDCARDS


def open_to_all(bind, port, sockets):
    """The address through which a server listens wider than it is bound ("0.0.0.0" or "::"), else None.

    sockets: listening_sockets(). With bind 127.0.0.1 a server that takes no address would serve the whole network.
    """
    if not is_narrow(bind):
        return None
    return next((address for address, found, _inode in sockets if found == port and address in WILDCARDS), None)


def port_holder(bind, port):
    """Who listens where a server bound to (bind, port) would: a wildcard on either side counts. None where nobody does.

    {pid, command, user, server, root}: pid and command are None where the process is not ours to see (user always is
    known); server and root are set where the process is a fleet server's.
    """
    listeners = {inode: uid for address, found, inode, uid in _listeners() if found == port and _overlap(bind, address)}
    holders = _holders(listeners)
    return next((holder for holder in holders if holder["pid"] is not None), holders[0]) if holders else None


def port_holders(bind, port):
    """[port_holder()] of all sockets that a request to a server bound to (bind, port) can reach; [] where none listens.

    A socket of the very address takes requests before one of all addresses does; several may share a port
    (SO_REUSEPORT).
    """
    host = http_client.connect_host(bind)
    host = "127.0.0.1" if host == "localhost" else host
    found = [(address, inode, uid) for address, number, inode, uid in _listeners() if number == port]
    for reached in ((host,), ("0.0.0.0",) if ":" not in host else (), ("::",)):
        listeners = {inode: uid for address, inode, uid in found if address in reached}
        if listeners:
            return _holders(listeners)
    return []


def _holders(listeners):
    """[{pid, command, user, server, root}] of sockets ({inode: uid}), in the order of pids, those not seen last."""
    holders, missing = [], dict(listeners)
    for pid in sorted(guard.process_table()) if missing else ():
        held = missing.keys() & _socket_inodes(pid)
        if held:
            root, server = guard.markers_of(pid) or (None, None)
            user = user_name(missing[min(held)])
            holders.append({"pid": pid, "command": command(pid), "user": user, "server": server, "root": root})
            missing = {inode: uid for inode, uid in missing.items() if inode not in held}
    for uid in missing.values():
        holders.append({"pid": None, "command": None, "user": user_name(uid), "server": None, "root": None})
    return holders


def _socket_inodes(pid):
    return {int(target[8:-1]) for target in open_files(pid) if target.startswith("socket:[")}


def open_files(pid):
    """{paths} of what the process has open, "socket:[INODE]" for a socket; empty where that is not ours to see."""
    folder = "/proc/%d/fd" % pid
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                found.add(os.readlink("%s/%s" % (folder, name)))
    return found


def user_name(uid):
    """The user's name, the number as text where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def command(pid):
    """The process's argv joined by blanks; its short name in brackets where it has none; None where it is gone."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as stream:
            text = stream.read().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
        if text:
            return text
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as stream:
            return "[%s]" % stream.read().strip()
    except OSError:
        return None


def argv(pid):
    """The process's argv as a list of str (undecodable bytes as surrogates), empty where it is gone."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as stream:
            text = stream.read()
    except OSError:
        return []
    return [os.fsdecode(item) for item in text.split(b"\0")[:-1]]


def processes_with_marker(root, name):
    """Pids of all that runs of the server `name` of this root, children without its environment included."""
    return guard.marked_processes(root).get(name, [])


def terminate(pids, term_s, kill_s):
    """End these processes: TERM, up to term_s seconds, KILL, up to kill_s seconds. Returns the pids that survived.

    A pid that has gone over to another process meanwhile is left alone; a zombie counts as ended.
    """
    ticks = {pid: found.ticks for pid, found in ((pid, guard.process(pid)) for pid in pids) if found is not None}

    def alive():
        for pid, start in ticks.items():
            found = guard.process(pid)
            if found is not None and found.ticks == start and found.state not in guard.ENDED:
                yield pid

    return guard.terminate(alive, term_s, kill_s)


def memory_mib(pids):
    """Memory of these processes together in MiB: proportional set size where we may read it, else resident set size.

    None where none of them is there to be read.
    """
    total = None
    for pid in pids:
        kib = _field_kib("/proc/%d/smaps_rollup" % pid, "Pss:")
        if kib is None:
            kib = _field_kib("/proc/%d/status" % pid, "VmRSS:")
        if kib is not None:
            total = (total or 0) + kib
    return None if total is None else round(total / 1024)


def _field_kib(path, field):
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            for line in stream:
                if line.startswith(field):
                    return int(line.split()[1])
    except OSError:
        return None
    return None


def started_at(pid):
    """When the process was started, in epoch seconds (float), None where it is gone or a zombie."""
    found = guard.process(pid)
    if found is None or found.state in guard.ENDED:
        return None
    with open("/proc/stat", encoding="ascii") as stream:
        boot = next(int(line.split()[1]) for line in stream if line.startswith("btime "))
    return boot + found.ticks / os.sysconf("SC_CLK_TCK")
