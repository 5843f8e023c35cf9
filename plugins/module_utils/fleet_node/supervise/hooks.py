# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a platform does for the start of its servers.

An entry's `hooks` is {name: settings}; options.start_hooks() says which module has the class StartHook of a name.
Its of(entry, options) gives the hook of an entry or None. replaces(leader): whether that server need not be waited for;
prepare(state): False where the server must not start, OSError where it cannot; before_execution(): right before the
engine.
"""

from __future__ import annotations


def of_entry(entry, options):
    """[hook] of an entry."""
    if not entry["hooks"]:
        return []  # without an import of all platforms
    modules = options.start_hooks()
    found = [modules[name].StartHook.of(entry, options) for name in entry["hooks"] if name in modules]
    return [hook for hook in found if hook is not None]
