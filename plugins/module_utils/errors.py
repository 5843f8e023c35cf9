# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Typed errors of everything below modules; they become fail_json only in a module's main()."""

from __future__ import annotations


class FleetError(Exception):
    """A mistake a person can mend. The message says what is wrong, where, what is allowed and what to do.

    `details` is a JSON-ready dict that a module adds to its result beside `msg`.
    """

    def __init__(self, message, **details):
        super().__init__(message)
        self.message = message
        self.details = details
