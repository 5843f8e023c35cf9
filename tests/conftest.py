# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os

from ansible_collections.inference.fleet.tests import runs, warm_playbooks
from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does; the tests that measure time say so themselves.
PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow], "print_blob": True}
# The same examples in each run of `make test`; `make soak` looks for others, and more of them.
settings.register_profile("fleet", derandomize=True, **PATIENT)
settings.register_profile("soak", max_examples=1000, **PATIENT)
settings.load_profile("fleet")

runs.warm.append(warm_playbooks.Server(dict(os.environ), runs.CLONE))
