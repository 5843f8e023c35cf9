# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values of a report as words and numbers for a page. Values of any type are accepted, without errors."""

from __future__ import annotations

import datetime
import re
import shlex

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.values import TIME
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.visible import UNSEEN
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.visible import visible as text_visible

MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()  # noqa: SIM905 - twelve lines otherwise
NAME = 200  # longest name, address or version


def visible(value):
    """Return a string with its invisible characters made visible; other values unchanged."""
    return text_visible(value, lines=True) if isinstance(value, str) and not hasattr(value, "__html__") else value


def mapping(value):
    return value if isinstance(value, dict) else {}


def items(value):
    return value if isinstance(value, list) else []


def cut(value, limit=NAME):
    """Return a string of at most `limit` characters; empty for values that are neither strings nor numbers."""
    if not limit:
        return ""
    text = str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"


def quoted(text):
    """Return a word for a shell, with ? in place of control characters."""
    return shlex.quote(UNSEEN.sub("?", text).replace("\n", "?"))


def natural(name):
    """Return a sort key: node-2 is before node-10."""
    parts = re.split(r"([0-9]+)", name)
    return [(len(part.lstrip("0")), part) if number % 2 else (0, part) for number, part in enumerate(parts)]


def counted(number, noun):
    return "%d %s%s" % (number, noun, "" if number == 1 else "s")


def time_of(text):
    try:
        return datetime.datetime.strptime(text, TIME)
    except (TypeError, ValueError):
        return None


def moment(text):
    """Return a report's time for people; other strings unchanged."""
    time = time_of(text)
    if time is None:
        return cut(text)
    return "%d %s %d, %s UTC" % (time.day, MONTHS[time.month - 1], time.year, time.strftime("%H:%M:%S"))


def age(delta):
    """Return a long time: 50 min, 3 h, 2 days."""
    minutes = int(delta.total_seconds() // 60)
    if minutes < 120:
        return "%d min" % max(1, minutes)
    return "%d h" % (minutes // 60) if minutes < 2880 else "%d days" % (minutes // 1440)


def duration(ms):
    if ms < 1000:
        return "%d ms" % ms
    return "%.1f s" % (ms / 1000) if ms < 60000 else "%d min %d s" % divmod(ms // 1000, 60)
