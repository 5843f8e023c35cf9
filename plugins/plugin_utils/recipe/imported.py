# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The recipe of a server that was started by hand, as the difference from the host's recipe."""

from __future__ import annotations

import json
import posixpath

import yaml

from ...module_utils.fleet_node.errors import FleetError
from ...module_utils.fleet_node.host.processes import MASK
from ..engines import ENGINES
from ..engines.base import SERVED
from ..engines.options import text

MODEL = ("model", "model-path")
PLANNED = ("m", "host", "port", "middleware", "api-key", SERVED, *MODEL)  # the plan has them, and keys are variables


def recipe_of(name, base, entry, found):
    """Return the content of a recipe that extends `base` by what differs. Raises FleetError.

    entry: the plan's entry of the server. found: a server of the operation foreign_servers.
    """
    if found["engine"] != entry["engine"]:
        raise FleetError("recipe.other-engine", entry["name"], entry["host"], found["engine"], base, entry["engine"])
    words = found["words"]
    given = ENGINES[found["engine"]].effective(words, {}, None)
    model = next((given[flag] for flag in MODEL if flag in given), None)
    if model is None and words and not words[0].startswith("-"):
        model = words[0]
    recipe = {"schema": 1, "name": name, "extends": base}
    recipe["model"] = _model(model, str(given.get(SERVED) or model or entry["model_id"]), entry)
    recipe["container"] = _container(found, entry)
    planned = entry["arguments"]
    differing = {flag: _value(value) for flag, value in given.items()
                 if flag not in planned or _value(text(planned[flag])) != _value(value)}  # fmt: skip
    differing.update((flag, None) for flag in planned if flag not in given)
    recipe["arguments"] = {flag: value for flag, value in differing.items() if flag not in PLANNED and value != MASK}
    head = "# Of %s on %s, which was started by hand%s.\n" % (
        entry["name"],
        entry["host"],
        " with an API key: set fleet_api_key" if MASK in words else "",
    )
    content = {key: value for key, value in recipe.items() if value}
    return head + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=140, allow_unicode=True)


def _model(model, served, entry):
    """Return the keys of `model` that differ: another directory, or another model of a hub."""
    found = {} if served == entry["model_id"] else {"id": served}
    paths = [posixpath.normpath(path) for path in entry["weights"]]
    if not model or posixpath.normpath(model) in paths:
        return found
    if model.startswith("/"):
        return {"source": "path", "path": model, **found}
    if posixpath.basename(model) in map(posixpath.basename, paths):
        return found
    return {"repo": model, "revision": None, "path": "${models}/" + posixpath.basename(model), **found}


def _container(found, entry):
    """Return the keys of `container` that differ: another image."""
    image, _at, digest = (found["image"] or "").partition("@")
    planned = entry["container"] or {}
    return {"image": image, "digest": digest or None} if image and image != planned.get("image") else {}


def _value(value):
    """Return a value of a command line as a recipe has it: numbers, lists and mappings instead of strings."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value
