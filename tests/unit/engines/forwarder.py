# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Passes connections of a listening socket (a descriptor) on to a port of this machine, until its stdin is closed."""

from __future__ import annotations

import os
import socket
import sys
import threading

listener, target = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])


def watch():
    sys.stdin.read()
    os._exit(0)


def pump(source, sink):
    try:
        while True:
            block = source.recv(65536)
            if not block:
                break
            sink.sendall(block)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def serve(client):
    try:
        server = socket.create_connection(("127.0.0.1", target))
    except OSError:
        client.close()
        return
    pumps = [threading.Thread(target=pump, args=pair) for pair in ((client, server), (server, client))]
    for one in pumps:
        one.start()
    for one in pumps:
        one.join()
    client.close()
    server.close()


threading.Thread(target=watch, daemon=True).start()
sys.stdout.write("listening\n")
sys.stdout.flush()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
