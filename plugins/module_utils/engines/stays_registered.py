# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ends a worker of Dynamo that the others no longer find, so that it is started again.

    python -m inference_fleet_stays_registered dynamo.vllm --model …

With discovery in a folder (DYN_DISCOVERY_BACKEND=file) a registration that was not renewed for 10 s is removed by the
others. A worker that stood still for longer, on a suspended or starved machine, goes on without it: its health is 200,
and no request reaches it again. With etcd it ends by itself.

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
    sys.stderr.write("%s: no longer registered in the folder of discovery; this worker ends\n" % MODULE)
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)


def main(argv, environment):
    """Run the module argv[0] with the rest as its arguments, watched where discovery is in a folder."""
    if environment.get("DYN_DISCOVERY_BACKEND") == "file":
        address = "%s:%s" % (environment["DYN_SYSTEM_HOST"], environment["DYN_SYSTEM_PORT"])
        given = (environment["DYN_FILE_KV"], address, time.time())
        threading.Thread(target=watch, args=(lambda: is_registered(*given), _end), daemon=True).start()
    sys.argv[:] = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
