# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import atexit
import os
import pathlib
import shutil
import tempfile

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.tests import runs, warm_playbooks
from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does; the tests that measure time say so themselves.
CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much]
PATIENT = {"deadline": None, "suppress_health_check": CHECKS, "print_blob": True}
# The same examples in each run of `make test`; `make soak` looks for others, and more of them.
settings.register_profile("fleet", derandomize=True, max_examples=50, **PATIENT)
settings.register_profile("soak", max_examples=1000, **PATIENT)
settings.load_profile("fleet")

# Plans are kept for the tests of one run, and not with those of who runs them.
os.environ["INFERENCE_FLEET_PLAN_CACHE"] = tempfile.mkdtemp(prefix="fleet-plans-")
atexit.register(shutil.rmtree, os.environ["INFERENCE_FLEET_PLAN_CACHE"], ignore_errors=True)

# What outlives a call is started from here, as from the folder of a version on a node.
PLACE = pathlib.Path(tempfile.mkdtemp(prefix="fleet-program-"))
atexit.register(shutil.rmtree, PLACE, ignore_errors=True)
(PLACE / program.ROOT).symlink_to(pathlib.Path(program.__file__).parent)
(PLACE / program.MAIN).symlink_to(pathlib.Path(program.__file__).with_name(program.MAIN))
program._place = lambda: str(PLACE)

os.fsync = lambda handle: None  # no test cuts the power, and each call waits for the disk

runs.warm.append(warm_playbooks.Server(dict(os.environ), runs.CLONE))
