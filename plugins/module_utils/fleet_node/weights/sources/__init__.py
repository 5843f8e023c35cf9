# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where weights come from that need no hub. Each module of this package is a source, with two functions:

wanted_files(request)
    {name: {size, sha256: hex or None, and what else a manifest keeps of it}}: what the destination must hold;
    None where that cannot be said now, so that a manifest that is there is the only truth.
fetch(request, names, folder, read=None)
    Put at least the files `names` into `folder`, which is not there yet. Returns {name: {size, sha256, …}}. read(name,
    bytes): called as it goes, where it takes long.
    Called after enough space was found; never in check mode. Raises FleetError.

A new source is a new module here, an entry in local_weights.SOURCES, and a choice of the module's option `source`.
"""

from __future__ import annotations

from typing import NamedTuple

from ...errors import FleetError


class Request(NamedTuple):
    """Which weights are wanted where. repo and revision name them; format is mxfp4, bf16 or None for any. repo is None
    for a draft model of unknown origin.

    path, copy: of source path. packed, expected, encodings_file: of source standin, where expected is
    {name: {size, sha256}} or None to read it from `packed`. sums: {name: sha256} that the files must have, or None.
    """

    source: str
    repo: str | None
    destination: str
    revision: str | None = None
    format: str | None = None
    path: str | None = None
    copy: bool = False
    packed: str | None = None
    expected: dict | None = None
    encodings_file: str | None = None
    sums: dict | None = None

    @property
    def in_place(self):
        """Whether the destination is somebody else's directory, which is never changed but for the manifest."""
        return self.source == "path" and not self.copy


class NotOnNode(FleetError):
    """The source's files are still on the controller; bring them to the node and ask again."""
