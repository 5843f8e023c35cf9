# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in checkpoint that this collection carries in packed form: it proves plumbing, never quality."""

from __future__ import annotations

import os

from ...errors import FleetError
from ...model import gpt_oss
from . import NotOnNode


def wanted_files(request):
    """What the packed form promises; None where it promises nothing."""
    if request.expected is not None:
        return request.expected or None
    if request.packed is None:
        return None
    standin = _standin()
    try:
        return standin.read_description(request.packed).get("files") or None
    except standin.StandinError as error:
        raise FleetError("standin.failed", "Cannot read the stand-in: %s", (error,)) from error


def fetch(request, names, folder, read=None):
    """Expand the packed form; all of its files are made, whichever are asked for."""
    if request.packed is None:
        raise NotOnNode(
            "standin.failed", "The packed stand-in is not on this node; give packed, the directory that holds it."
        )
    if not request.encodings_file or not os.path.isfile(request.encodings_file):
        raise FleetError(
            "standin.failed",
            "The stand-in's tokenizer is made from the encoding %s, and encodings_file %s is not there. "
            "Run the role tiktoken_encodings before this one.",
            (gpt_oss.VOCABULARY, request.encodings_file or "(not set)"),
        )
    standin = _standin()
    try:
        return standin.expand(request.packed, folder, request.encodings_file)
    except standin.StandinError as error:
        raise FleetError("standin.failed", "Cannot make the stand-in: %s", (error,)) from error


def _standin():
    from .. import standin  # which no other weights need

    return standin
