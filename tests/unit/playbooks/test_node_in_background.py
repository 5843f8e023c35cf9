# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations in the background of Ansible (async): the program comes to the node before, and errors come back."""

from __future__ import annotations

import json
import sys

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node import program
from ansible_collections.inference.fleet.tests.runs import play


def test_the_program_is_brought_before_an_operation_that_is_not_waited_for(tmp_path):
    def node(operation, **arguments):
        return {"inference.fleet.node": {"operation": operation, "arguments": arguments}}

    behind = {"async": 60, "poll": 1}
    tasks = [
        # as the node has no folders yet, the program runs from its archive
        {**node("shared_libraries", libraries=["libc.so.6"]), **behind, "register": "first"},
        node("node_layout", root="{{ fleet_root }}"),
        {**node("shared_libraries", libraries=["libnone.so.9"]), **behind, "register": "second"},
        {**node("shared_libraries", libraries=["libnone.so.9"]), **behind, "register": "third"},
        {"ansible.builtin.debug": {"msg": "found {{ [first, second, third] | map(attribute='missing') | to_json }}"}},
        {**node("shared_libraries", libraries=[], nobody_knows="this"), **behind},
    ]
    book = tmp_path / "play.yml"
    book.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable,
                 "fleet_root": str(tmp_path / "root")}  # fmt: skip
    run = play(str(book), "n1,", variables=variables).failed(
        "unknown arguments: nobody_knows. Supported parameters include: libraries."
    )
    assert 'found [[], ["libnone.so.9"], ["libnone.so.9"]]' in run.output
    kept = tmp_path / "root/var/lib/inference-fleet/program"
    assert program.own_version() in {one.name for one in kept.iterdir()}
