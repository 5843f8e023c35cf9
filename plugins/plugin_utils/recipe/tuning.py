# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measured settings as data. fleet_tuning selects the setting that is nearest to the expected load of an inventory.

A recipe's `tuning` has a `source` and `sets`. A set specifies its accelerators and numbers of devices, the measured
`lengths` {input, output, …} and numbers of concurrent requests (`concurrency`), and the `override` of the recipe that
was measured; "${input}" and the like in it are replaced by the numbers of the point.
"""

from __future__ import annotations

import math

from ..base.checks import MAX_NUMBER, check_number, invalid

WANTED = ("input", "output", "concurrency")


def check_wanted(name, value):
    """Raises FleetError unless ``value`` is {input, output, concurrency}, whole numbers above 0."""
    if not isinstance(value, dict) or set(value) != set(WANTED):
        raise invalid(name, value, "{input, output, concurrency}: tokens of a request and an answer, requests at once")
    for key in WANTED:
        check_number("%s.%s" % (name, key), value[key], MAX_NUMBER)


def points(table):
    """Return all measured points of a table: [{accelerator, devices, input, output, concurrency, …, override}]."""
    return [
        {**lengths, "accelerator": accelerator, "devices": devices, "concurrency": concurrency,
         "override": measured["override"]}
        for measured in table["sets"]
        for accelerator in measured["accelerators"]
        for devices in measured["devices"]
        for lengths in measured["lengths"]
        for concurrency in measured["concurrency"]
    ]  # fmt: skip


def nearest(table, wanted, accelerator, devices):
    """Return the point of a table for ``devices`` of an accelerator that is nearest to ``wanted``: by the ratio of
    lengths, then by the ratio of concurrency; of two equally near points, the point with the higher concurrency. Raises
    FleetError if there is none."""
    known = points(table)
    here = [one for one in known if (one["accelerator"], one["devices"]) == (accelerator, devices)]
    if not here:
        measured = sorted({"%d %s" % (one["devices"], one["accelerator"]) for one in known})
        raise invalid("fleet_tuning with servers of", "%d %s" % (devices, accelerator), ", ".join(measured))

    def far(one, *keys):
        return sum(abs(math.log(one[key] / int(wanted[key]))) for key in keys)

    return min(here, key=lambda one: (far(one, "input", "output"), far(one, "concurrency"), -one["concurrency"]))


def override_of(point, wanted):
    """Return the override of a point, with its numbers filled in.
    The capacity check then expects the load in ``wanted``."""
    numbers = {"${%s}" % key: value for key, value in point.items() if key != "override"}

    def filled(value):
        if isinstance(value, dict):
            return {key: filled(item) for key, item in value.items()}
        return numbers.get(value, value) if isinstance(value, str) else value

    benchmark = dict(zip(("input_tokens", "output_tokens", "concurrency"), (int(wanted[key]) for key in WANTED)))
    return {"benchmark": benchmark, **filled(point["override"])}


def devices_of(recipe):
    """Return the number of devices of each server of a recipe. Raises FleetError if they differ."""
    sizes = {group["devices"] for group in recipe["servers"] if group["devices"]}
    if len(sizes) != 1:
        raise invalid("fleet_tuning with servers of", sorted(sizes), "servers with equally many devices")
    return next(iter(sizes))


def text_of(point, wanted, source):
    """Return a sentence about the selected point."""
    said = "%d tokens in, %d out, %d requests at once" % tuple(point[key] for key in WANTED)
    asked = "%d, %d, %d" % tuple(int(wanted[key]) for key in WANTED)
    same = all(point[key] == int(wanted[key]) for key in WANTED)
    return "measured on %d %s for %s%s (%s)" % (
        point["devices"], point["accelerator"], said, "" if same else ", nearest to " + asked, source,
    )  # fmt: skip
