# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os

from ansible_collections.inference.fleet.tests import runs, warm_playbooks

runs.warm.append(warm_playbooks.Server(dict(os.environ), runs.CLONE))
