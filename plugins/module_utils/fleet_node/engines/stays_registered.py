# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends a process of Dynamo when the others no longer find it, or it no longer finds them, so that it is started again.

    python -m inference_fleet_stays_registered dynamo.vllm --model …

With discovery in a folder (DYN_DISCOVERY_BACKEND=file), the other processes remove a registration that was not renewed
for 10 s. A worker that was paused for longer, on a suspended or starved machine, continues without its registration:
its health is 200, and no request reaches it again. With etcd it ends by itself. If the folder was removed, the frontend
no longer watches it, even if workers make a new folder at its path.

The engine's Python imports a copy on the node, so this module uses only the standard library.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path

MODULE = "inference_fleet_stays_registered"
POLL_S = 2
MISSED = 2  # checks in a row, since a file is renewed by writing it
GRACE_S = 20  # to end by itself
MARK = ".inference-fleet-folder"  # in the folder; supervise/run.py writes it before a start


def is_registered(folder, address, since):
    """Whether a model card in the folder of discovery belongs to the worker whose system port has this address.

    since: seconds since the epoch; older cards belong to a previous process.
    """
    for card in (Path(folder) / "v1" / "mdc").glob("*"):
        try:
            if card.stat().st_mtime >= since and "//%s/" % address in card.read_text(errors="replace"):
                return True
        except OSError:
            continue  # removed since it was listed
    return False


def mark_of(folder):
    """The mark that distinguishes this folder from a later folder at its path, None if it has none."""
    try:
        return (Path(folder) / MARK).read_text(errors="replace")
    except OSError:
        return None


def watch(registered, end, pause=time.sleep):
    """Call end() if registered() was true and then is false MISSED times in a row."""
    missed = None  # not registered yet
    while missed != MISSED:
        pause(POLL_S)
        if registered():
            missed = 0
        elif missed is not None:
            missed += 1
    end()


def _end():
    sys.stderr.write("%s: no longer registered in the folder of discovery; this process ends\n" % MODULE)
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


def main(argv, environment):
    """Run the module argv[0] with the rest as its arguments. It is watched if discovery is in a folder."""
    if environment.get("DYN_DISCOVERY_BACKEND") == "file":
        folder, began = environment["DYN_FILE_KV"], time.time()
        mark, port = mark_of(folder), environment.get("DYN_SYSTEM_PORT")
        address = port and "%s:%s" % (environment["DYN_SYSTEM_HOST"], port)

        def registered():
            return mark_of(folder) == mark and (
                is_registered(folder, address, began) if address else (Path(folder) / "v1" / "mdc").is_dir()
            )

        threading.Thread(target=watch, args=(registered, _end), daemon=True).start()
    sys.argv[:] = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
