# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds for the members of any service: who can be a cluster, and when one of them may be restarted. Pure."""

from __future__ import annotations

from ..errors import FleetError


def check_members(service, members):
    """FleetError for members [{name, address}] that cannot be one cluster."""
    names = [one["name"] for one in members]
    addresses = [one["address"] for one in members]
    for what, values in (("name", names), ("address", addresses)):
        double = sorted({value for value in values if values.count(value) > 1})
        if double:
            raise FleetError(
                "service.two-members-alike",
                "%s: two members have the %s %s. Give each host of the group its own.",
                (service, what, ", ".join(double)),
            )
    if len(members) == 2:
        raise FleetError(
            "service.two-members",
            "%s: a cluster of two (%s) is no safer than one: without either there is no quorum. Allowed: 1, 3, 5 or "
            "more hosts. Add one or take one out.",
            (service, ", ".join(names)),
        )


def can_stop(count, others):
    """Whether `others` healthy members keep a quorum of `count` while one is restarted; always where it is alone."""
    return count == 1 or others > count // 2
