# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role cpu asks the dynamic loader first, and nothing else where all libraries are there."""

from __future__ import annotations

import sys

import pytest
import yaml
from ansible_collections.inference.fleet.tests.runs import play


@pytest.fixture
def run(tmp_path):
    """run(packages, *arguments): the role on this machine."""
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"n1": host}}}))

    def run_role(packages, *arguments):
        role = {"role": "inference.fleet.cpu", "cpu_packages": packages}
        (tmp_path / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "roles": [role]}]))
        return play(str(tmp_path / "play.yml"), tmp_path / "hosts.yml", *arguments)

    return run_role


def test_what_is_there_is_not_installed(run):
    result = run({"libc.so.6": {"debian": "libc6"}}).ok()
    assert (result.count("changed"), result.count("skipped")) == (0, 1)


def test_what_is_missing_is_a_change_in_check_mode(run):
    result = run({"libc.so.6": {}, "libnone.so.9": {"debian": "libnone9"}}, "--check").ok()
    assert (result.count("changed"), result.count("skipped")) == (1, 1)


def test_a_library_of_an_unknown_package(run):
    run({"libnone.so.9": {"abacus": "libnone9"}}).failed("No package is known for libnone.so.9 on ")
