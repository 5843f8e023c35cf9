# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The known engines by their names. An engine is NAME.py of this folder, with an object ENGINE (base.Engine)."""

from __future__ import annotations

import inspect

from .. import engines
from ..discover import discover
from . import base

ENGINES = discover(engines.__name__, engines.__path__, "ENGINE")

API_KEYS = tuple(one.api_key for one in ENGINES.values() if one.api_key)
OTHER_API_KEYS = tuple(one.other_api_keys for one in ENGINES.values() if one.other_api_keys)


def engine_of(entry):
    """The Engine of a plan entry; for an unknown engine, an Engine with the general causes."""
    return ENGINES.get(entry.get("engine")) or base.Engine()


def module_texts(used):
    """{file name: content} of the modules that the Python of these engines ([Engine]) imports."""
    return {name + ".py": inspect.getsource(module) for engine in used for name, module in engine.modules}
