# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that is not managed: hold.py 9,10 8001 holds simulated cores and a port until it is ended."""

from __future__ import annotations

import os
import socket
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import simulated_neuron  # noqa: E402 - found by the path above

taken = simulated_neuron.hold(simulated_neuron.parse_cores(sys.argv[1]))
assert not taken, taken
sockets = [socket.create_server(("127.0.0.1", int(port))) for port in sys.argv[2:]]
while True:
    time.sleep(60)
