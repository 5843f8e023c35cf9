# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends a process of Dynamo that the others no longer find, or that no longer finds them, so that it is started again.

    python -m inference_fleet_stays_registered dynamo.vllm --model …

With discovery in a folder (DYN_DISCOVERY_BACKEND=file) a registration that was not renewed for 10 s is removed by the
others. A worker that stood still for longer, on a suspended or starved machine, goes on without it: its health is 200,
and no request reaches it again. With etcd it ends by itself. A folder that was removed is none that a frontend watches,
even when workers make another one at its path.

A copy lies on the node, where the engine's Python imports it: standard library only, nothing of this collection.
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
MISSED = 2  # looks in a row, since a file is renewed by writing it
GRACE_S = 20  # to end by itself
MARK = ".inference-fleet-folder"  # in the folder; supervise/run.py writes it before a start


def is_registered(folder, address, since):
    """Whether a model card in the folder of discovery is of the worker whose system port is at this address.

    since: seconds since the epoch; older cards are of the process before this one.
    """
    for card in (Path(folder) / "v1" / "mdc").glob("*"):
        try:
            if card.stat().st_mtime >= since and "//%s/" % address in card.read_text(errors="replace"):
                return True
        except OSError:
            continue  # removed since it was listed
    return False


def mark_of(folder):
    """What tells this folder from another one at its path, None where it has none."""
    try:
        return (Path(folder) / MARK).read_text(errors="replace")
    except OSError:
        return None


def watch(registered, end, pause=time.sleep):
    """Call end() where registered() was true and then is not, MISSED times in a row."""
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
    """Run the module argv[0] with the rest as its arguments, watched where discovery is in a folder."""
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
