# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings merged into a JSON mapping that others write too, and taken back again: what was there before stays.

What was set is kept as notes, in the order in which it was done:

    {"path": [keys], "made": "dict" or "list"}       a mapping or list that was not there
    {"path": [keys], "item": value}                  an item that a list lacked
    {"path": [keys], "value": value, "before": old}  a value; without "before" there was none
"""

from __future__ import annotations

import copy

ABSENT = object()
MADE = {"dict": dict, "list": list}


def merge(base, desired, notes=()):
    """(`base` with `desired` merged into it, the notes of what is set now). Pure.

    Mappings are merged key by key, lists get what they lack, everything else is replaced. notes: of the call before;
    what it set and is not desired any more is taken back, unless somebody has changed it since.
    """
    result = copy.deepcopy(base)
    kept = [note for note in notes if _is_desired(desired, note)]
    for note in reversed([note for note in notes if note not in kept]):
        _take_back(result, note)
    made = []
    _merge(result, desired, [], made)
    places = [_place(note) for note in made]
    return result, [note for note in kept if _place(note) not in places] + made


def _place(note):
    return note["path"], "item" in note, note.get("item")


def _find(mapping, path):
    for key in path:
        mapping = mapping.get(key, ABSENT) if isinstance(mapping, dict) else ABSENT
    return mapping


def _is_desired(desired, note):
    found = _find(desired, note["path"])
    if "made" in note:
        return isinstance(found, MADE[note["made"]])
    return found == note["value"] if "value" in note else isinstance(found, list) and note["item"] in found


def _take_back(settings, note):
    parent, found = _find(settings, note["path"][:-1]), _find(settings, note["path"])
    if found is ABSENT:
        return
    if "item" in note:
        if isinstance(found, list) and note["item"] in found:
            found.remove(note["item"])
    elif "before" in note and found == note["value"]:
        parent[note["path"][-1]] = copy.deepcopy(note["before"])
    elif found == note["value"] if "value" in note else found in ({}, []):
        del parent[note["path"][-1]]


def _merge(settings, desired, path, notes):
    for key, value in desired.items():
        old, where = settings.get(key, ABSENT), [*path, key]
        kind = next((name for name, made in MADE.items() if isinstance(value, made)), None)
        if old is ABSENT and kind:
            old = settings[key] = MADE[kind]()
            notes.append({"path": where, "made": kind})
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(old, value, where, notes)
        elif isinstance(old, list) and isinstance(value, list):
            for item in value:
                if item not in old:
                    old.append(copy.deepcopy(item))
                    notes.append({"path": where, "item": item})
        elif old != value:
            settings[key] = copy.deepcopy(value)
            notes.append({"path": where, "value": value, **({} if old is ABSENT else {"before": old})})
