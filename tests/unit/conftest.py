# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from hypothesis import settings

# How long an example takes depends on what else the machine does; the tests that measure time say so themselves.
settings.register_profile("fleet", deadline=None)
settings.load_profile("fleet")
