# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The type of operations, which calls run on nodes."""

from __future__ import annotations

import dataclasses
import typing


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation.

    arguments, rules: Ansible's argument_spec, and further rules such as required_if. run(params, check_mode): returns
    the result, whose `warnings` are shown as warnings. due(result): in check mode, the reason to run, or None; without
    it `changed` counts. reads: it changes nothing on the node. nested: run() also gets operation_of and validated.
    """

    arguments: dict
    run: typing.Callable
    due: typing.Callable | None = None
    reads: bool = False
    rules: dict = dataclasses.field(default_factory=dict)
    nested: bool = False
