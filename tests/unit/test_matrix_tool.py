# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The releases of ansible-core that are supported, said in one place, and which of them a machine runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import tomllib
import yaml
from ansible_collections.inference.fleet.tools import matrix
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
ALL = list(matrix.RELEASES)
PYTHONS = {(3, minor): Path("/usr/bin/python3.%d" % minor) for minor in range(9, 17)}


@pytest.mark.parametrize(
    ("minors", "chosen", "missing"),
    [
        ((11,), {"2.19": 11}, ["2.20", "2.21", "2.22"]),
        ((12,), {"2.19": 12, "2.20": 12, "2.21": 12}, ["2.22"]),
        ((11, 13), {"2.19": 11, "2.20": 13, "2.21": 13, "2.22": 13}, []),
        ((14, 15), {"2.20": 14, "2.21": 14, "2.22": 14}, ["2.19"]),
        ((9, 10, 16), {}, ["2.19", "2.20", "2.21", "2.22"]),
        ((), {}, ["2.19", "2.20", "2.21", "2.22"]),
    ],
)
def test_each_release_gets_the_oldest_python_that_it_takes(minors, chosen, missing):
    available = {(3, minor): PYTHONS[3, minor] for minor in minors}
    found, left_out = matrix.choose(ALL, available)
    assert found == {release: PYTHONS[3, minor] for release, minor in chosen.items()}
    assert list(left_out) == missing


def test_the_one_of_make_test_is_another_than_that_of_the_clone():
    for chosen, own, one in ((["2.19", "2.22"], "2.22", "2.19"), (["2.19"], "2.19", "2.19")):
        assert matrix.other(dict.fromkeys(chosen), own) == one


@pytest.fixture
def runs(monkeypatch):
    """What is run, in place of running it; a release in `bad` fails."""
    done, bad = [], set()

    class Controller:
        def __init__(self, release, venv):
            self.release = release

        def run(self):
            done.append(self.release)
            if self.release in bad:
                raise matrix.Failed("broken under %s" % self.release)

    monkeypatch.setattr(matrix, "Controller", Controller)
    monkeypatch.setattr(matrix, "make", lambda release, python: Path("/venv"))
    monkeypatch.setattr(matrix, "pythons", lambda: {(3, 11): PYTHONS[3, 11], (3, 12): PYTHONS[3, 12]})
    monkeypatch.setattr(matrix, "own_release", lambda: "2.19")
    return done, bad


def test_one_failure_does_not_hide_the_other_releases(runs, capsys):
    runs[1].add("2.20")
    assert matrix.main([]) == 1
    assert runs[0] == ["2.19", "2.20", "2.21"]
    assert "broken under 2.20\n" in capsys.readouterr().out
    assert matrix.main(["--other"]) == 0
    assert runs[0][3:] == ["2.21"]


@pytest.mark.parametrize(
    ("status", "printed", "fails"),
    [
        (0, "PLAY RECAP", None),
        (0, "[DEPRECATION WARNING]: old. This feature will be removed from ansible-core version 2.23.",
         "plan.yml under ansible-core 2.21: [DEPRECATION WARNING]"),
        (0, "[WARNING]: Collection inference.fleet does not support Ansible version 2.21.5",
         "plan.yml under ansible-core 2.21: does not support Ansible version"),
        (2, "fatal", "plan.yml under ansible-core 2.21: exit status 2"),
    ],
)  # fmt: skip
def test_a_deprecation_is_a_failure(tmp_path, status, printed, fails):
    program = tmp_path / "bin" / "ansible-playbook"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho '%s'\nexit %d\n" % (printed, status))
    os.chmod(program, 0o755)
    one = matrix.Controller("2.21", tmp_path)
    one.port = 24000
    if fails is None:
        assert one.play("plan.yml", "inventories/trn3") == printed + "\n"
        return
    with pytest.raises(matrix.Failed) as caught:
        one.play("plan.yml", "inventories/trn3")
    assert str(caught.value) == printed + "\n\n" + fails


# --- said in one place ---------------------------------------------------------------------------------------------


def test_the_page_has_the_same_releases():
    rows = re.findall(
        r"^\| (2\.\d+) \| ([\d., ]+) \|", (ROOT / "docs" / "using" / "support.md").read_text(), re.MULTILINE
    )
    assert {release: pythons.split(", ") for release, pythons in rows} == {
        release: ["3.%d" % minor for minor in range(oldest[1], newest[1] + 1)]
        for release, (oldest, newest) in matrix.RELEASES.items()
    }


def test_the_collection_asks_for_the_oldest_release():
    asked = yaml.safe_load((ROOT / "meta" / "runtime.yml").read_text())["requires_ansible"]
    assert asked == ">=%s.0" % ALL[0]


@pytest.mark.parametrize("minor", range(11, 16))
def test_the_clone_is_developed_on_a_supported_release_for_each_python(minor):
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (one,) = [
        requirement
        for requirement in map(Requirement, wanted)
        if requirement.name == "ansible-core" and requirement.marker.evaluate({"python_version": "3.%d" % minor})
    ]
    possible = [
        release for release, (oldest, newest) in matrix.RELEASES.items()
        if oldest <= (3, minor) <= newest and one.specifier.contains(release + ".1")
    ]  # fmt: skip
    newest = [release for release, (oldest, last) in matrix.RELEASES.items() if oldest <= (3, minor) <= last][-1]
    assert possible[-1] == newest  # the newest that this Python runs, once it is out
    assert not one.specifier.contains("2.23.0")
