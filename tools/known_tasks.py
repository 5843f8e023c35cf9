# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes plugins/plugin_utils/planning/known_tasks.json: digests of the playbooks of site.yml's steps and of their
roles, whose operations planning/steps.py lists.

    .venv/bin/python tools/run.py python tools/known_tasks.py

Run it after a task of these files has changed, and after steps.py, or operations() of the platform or the engine, has
been updated.
"""

from __future__ import annotations

import json
import pathlib

from ansible_collections.inference.fleet.plugins.plugin_utils.engines import ENGINES
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import steps
from ansible_collections.inference.fleet.plugins.plugin_utils.platforms import PLATFORMS

CLONE = pathlib.Path(__file__).resolve().parent.parent
# and those of platforms and engines
ROLES = ("container_engine", "model_weights", "monitoring", "serve", "tiktoken_encodings", "toolkit", "verify")


def places():
    """Return the playbooks and roles with known tasks, as paths in the collection."""
    roles = ["roles/" + name for name in sorted({*ROLES, *PLATFORMS, *ENGINES})]
    return [steps.PLAYBOOK % step for step in steps.STEPS] + [one for one in roles if (CLONE / one).is_dir()]


def text():
    """Return the content of known_tasks.json."""
    return json.dumps({one: steps.content_of(CLONE / one) for one in places()}, indent=2) + "\n"


if __name__ == "__main__":
    pathlib.Path(steps.KNOWN).write_text(text(), encoding="utf-8")
