# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make soak`: random kills for longer. One case of it stands in test_local.py, which `make test` runs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import pytest

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "10"))
SEED = int(os.environ.get("SOAK_SEED", "0")) or random.randrange(1 << 30)

pytestmark = pytest.mark.soak


def test_random_kills_of_any_process(deployment):
    """Kill -9 any process of the deployment, the service manager too, at any moment; every time it heals."""
    chance = random.Random(SEED)
    print("seed", SEED)
    override = {"environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}}
    deployment.site(override=override).ok()
    for number in range(ROUNDS):
        pid, command = chance.choice(deployment.processes())
        print("round %d: kill -9 %d (%s)" % (number, pid, command[:80]))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(chance.uniform(0, 10))
        deployment.site(override=override).ok()
        assert all(False not in probes.values() for probes in deployment.verdicts().values())
        # The two servers and their engines, no process twice.
        engines = [command for _pid, command in deployment.processes() if "EngineCore" in command]
        assert len(engines) == 2, deployment.processes()
    deployment.play("playbooks/stop.yml").ok()
    assert deployment.processes() == []
