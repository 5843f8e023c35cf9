# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is said of the files of installed packages, by their RECORD."""

from __future__ import annotations

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.installed_packages import damaged_file


@pytest.fixture
def site(tmp_path):
    """An environment with one package: a module of 10 bytes, a program of 5, data of 3."""
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    record = 'demo/a.py,sha256=x,10\n../../../bin/demo,sha256=y,5\ndemo/b.h,,3\n"demo/c,d.py",,1\ndemo/e.py,,\n'
    for name, text in (("demo/a.py", "x" * 10), ("demo/b.h", "abc"), ("demo/e.py", ""), ("../../../bin/demo", "x" * 5),
                       ("Demo_X-1.0.dist-info/RECORD", record)):  # fmt: skip
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return site


def test_a_complete_package(site, tmp_path):
    assert damaged_file(str(tmp_path), ["demo-x"]) is None
    (site / "demo/a.py").write_text("patched by somebody")
    (site / "demo/b.h").unlink()
    assert damaged_file(str(tmp_path), ["demo-x"]) is None


@pytest.mark.parametrize("name", ["demo/a.py", "demo/e.py", "../../../bin/demo"])
def test_a_file_is_missing(site, tmp_path, name):
    (site / name).unlink()
    path = str((site / name).resolve())
    assert damaged_file(str(tmp_path), ["demo-x"]) == ("demo-x", path + " is missing")
    assert damaged_file(str(tmp_path), ["other"]) is None


def test_a_file_is_truncated(site, tmp_path):
    (site / "demo/a.py").write_text("x" * 9)
    said = "%s/demo/a.py is 9 bytes long, was 10" % site
    assert damaged_file(str(tmp_path), ["demo-x"]) == ("demo-x", said)


def test_a_package_without_a_record(site, tmp_path):
    (site / "Demo_X-1.0.dist-info/RECORD").unlink()
    assert damaged_file(str(tmp_path), ["demo-x"]) is None
