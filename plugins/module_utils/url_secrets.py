# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What addresses of indexes, hubs and proxies carry that no log may show."""

from __future__ import annotations

from urllib.parse import urlsplit


def url_secrets(*values):
    """The passwords and tokens in URLs among `values` (strings, lists and dicts of them), to be kept out of logs."""
    found = set()
    for value in values:
        if isinstance(value, dict):
            found |= url_secrets(*value.values())
        elif isinstance(value, (list, tuple)):
            found |= url_secrets(*value)
        elif isinstance(value, str) and "@" in value and "://" in value:
            parts = urlsplit(value)
            found |= {part for part in (parts.password or parts.username,) if part}
    return found
