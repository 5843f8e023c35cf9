# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values and commands as supervisord's ini file holds them."""

from __future__ import annotations

import re
import shlex

from ..errors import FleetError


def ini_value(text, expansions=1):
    """`text` as the value of a key in supervisord's ini file.

    expansions: how often supervisord applies its %-expansion to this key (twice to stdout_logfile). The format has no
    quoting of values: FleetError for a string that it cannot hold.
    """
    escaped = text.replace("%", "%" * 2**expansions)
    unfit = (
        text != text.strip()
        or re.search(r"[\x00-\x1f\x7f]", text)
        or re.search(r"\s[;#]", text)  # the rest would be a comment
        or "%(here)s" in escaped  # replaced before %% is
    )
    if unfit:
        raise FleetError(
            "supervisord.text-invalid",
            "%r cannot stand in supervisord's configuration: no blanks at its ends, no control characters, no ';' or "
            "'#' after a blank, no %%(here)s. Choose another path.",
            (text,),
        )
    return escaped


def ini_command(argv):
    """argv as the value of `command`, which supervisord expands once and then splits as a POSIX shell would."""
    words = []
    for item in argv:
        if re.search(r"[\x00\r\n]", item):
            raise FleetError(
                "supervisord.line-break",
                "%r cannot stand in supervisord's configuration: it has a line break.",
                (item,),
            )
        word = shlex.quote(item).replace("%", "%%")
        # '' inside a quoted word is nothing to the shell, and keeps the ini parser from seeing a comment or %(here)s
        words.append(re.sub(r"(\s)([;#])", r"\1''\2", word).replace("%(here)s", "%''(here)s"))
    return " ".join(words)
