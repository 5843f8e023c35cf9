# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environments made for real by uv, of wheels that the tests build; nothing comes from a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python_environment as pe
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import free_port
from ansible_collections.inference.fleet.tests.unit.node_helpers import build_index, build_wheel, script, uv_wheel
from ansible_collections.inference.fleet.tests.unit.operating import four_steps, operate

UV = shutil.which("uv", path=os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", ""))
# No configuration of this machine reaches the tests, and a refused connection is not tried again.
CLEAN = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_INDEX_URL": "",
         "UV_NO_CONFIG": "1", "UV_HTTP_RETRIES": "0"}  # fmt: skip


class Site:
    """The wheels of a site, and how to install from them."""

    def __init__(self, folder):
        assert UV, "uv is a test requirement, see pyproject.toml"
        self.path, self.folder = folder / "lib" / "env", folder / "wheels"
        for version in ("1.0", "2.0"):
            build_wheel(self.folder, "fleet-demo", version, ["fleet-needed", "fleet-heavy"])
        build_wheel(self.folder, "fleet-needed", "0.1")
        build_wheel(self.folder, "fleet-heavy", "9.0")
        self.arguments = {
            "path": str(self.path), "packages": ["fleet-demo==1.0"], "excludes": ["fleet-heavy"], "uv": UV,
            "find_links": [str(self.folder)], "index_url": build_index(folder / "empty"),
            "verify_imports": ["fleet_demo"], "environment": {**CLEAN, "UV_CACHE_DIR": str(folder / "cache")},
        }  # fmt: skip

    def run(self, check_mode=False, **changes):
        return operate("python_environment", check_mode, **{**self.arguments, **changes})

    def four_steps(self, **changes):
        return four_steps("python_environment", **{**self.arguments, **changes})

    def names(self):
        return sorted(os.listdir(self.path))


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_made_checked_and_left_alone(site, tmp_path, monkeypatch):
    """Readable by the service whatever the umask. A rerun starts no process and needs no network."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    check = site.run(check_mode=True)
    assert check["diff"] == {"before": "", "after": "fleet-demo==1.0\n"}
    assert check["message"] == "would install fleet-demo==1.0 in %s: it does not exist" % site.path
    assert not site.path.parent.exists() and not (tmp_path / "cache").exists()
    old = os.umask(0o077)
    try:
        applied = site.run()
    finally:
        os.umask(old)
    assert applied["diff"] == {"before": "", "after": "fleet-demo==1.0\nfleet-needed==0.1\n"}
    assert applied["packages"] == {"fleet-demo": "1.0"}
    assert applied["python"] == "%s/bin/python" % site.path
    # What nothing has imported yet is compiled as well.
    assert list(site.path.glob("lib/python3*/site-packages/fleet_needed/__pycache__/*.pyc"))
    assert pe.PARTIAL not in site.names()
    for path in (site.path.parent, site.path, *site.path.glob("lib/python3*/site-packages/fleet_demo*")):
        assert path.stat().st_mode & 0o755 == 0o755, path
    assert (site.path / pe.MARKER).stat().st_mode & 0o777 == 0o644
    for name in ("run", "Popen"):
        monkeypatch.setattr(subprocess, name, lambda *given, **more: pytest.fail("started %s" % given[0]))
    again = site.run(index_url="http://127.0.0.1:%d/simple" % free_port(), find_links=[], uv="/nowhere/uv")
    assert (again["changed"], again["message"]) == (False, "up to date")


def test_what_differs_changes_the_environment_in_place(site):
    """What is excluded later goes, what was taken away comes back, another version takes the place of the old one."""
    assert site.run(excludes=[])["diff"]["after"] == "fleet-demo==1.0\nfleet-heavy==9.0\nfleet-needed==0.1\n"
    _check, applied = site.four_steps()
    assert applied["diff"]["after"] == "fleet-demo==1.0\nfleet-needed==0.1\n"
    (gone,) = site.path.glob("lib/python3*/site-packages/fleet_demo-1.0.dist-info")
    shutil.rmtree(gone)
    check, applied = site.four_steps()
    assert check["message"].endswith(": fleet-demo 1.0 is missing")
    assert applied["diff"]["before"] == "fleet-needed==0.1\n"
    (site.path / "kept").write_text("")
    _check, applied = site.four_steps(packages=["fleet-demo==2.0"])
    assert applied["diff"]["after"] == "fleet-demo==2.0\nfleet-needed==0.1\n"
    assert applied["message"].endswith(": its settings changed")
    assert "kept" in site.names()


def test_a_change_that_fails_is_made_from_scratch_next_time(site):
    site.run()
    (site.path / "old").write_text("")
    failed = site.run(packages=["fleet-demo==3.0"])
    assert failed["code"] == "venv.install-failed"
    assert "there is no version of fleet-demo==3.0" in failed["msg"]
    failed = site.run(verify_imports=["fleet_demo", "fleet_heavy"])  # an import that fails is no success
    assert (failed["code"], "No module named 'fleet_heavy'" in failed["msg"]) == ("venv.install-failed", True)
    assert pe.PARTIAL in site.names() and pe.MARKER not in site.names()
    _check, applied = site.four_steps(packages=["fleet-demo==2.0"])
    assert applied["message"].endswith(": an earlier run left it incomplete")
    assert applied["packages"] == {"fleet-demo": "2.0"}
    assert "old" not in site.names() and pe.PARTIAL not in site.names()


def test_somebody_elses_directory_is_left_as_it_is(site):
    site.path.mkdir(parents=True)
    (site.path / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for check_mode in (True, False):
        assert site.run(check_mode)["code"] == "venv.path-taken"
    assert site.names() == ["pyvenv.cfg"]


def test_a_broken_one_is_made_again(site, tmp_path):
    site.path = tmp_path / "var/lib/inference-fleet/venvs/env"  # among ours it may lack its marker
    python, marker = site.path / "bin" / "python", site.path / pe.MARKER

    def other_interpreter():
        python.unlink()
        python.symlink_to("/bin/sh")

    site.run(path=str(site.path))
    for damage, words in (
        (python.unlink, "interpreter is missing or another one"),
        (other_interpreter, "interpreter is missing or another one"),
        (marker.unlink, "it has no valid marker file"),
        (lambda: marker.write_text('{"schema": 1}'), "it has no valid marker file"),
    ):
        (site.path / "rest").write_text("")
        damage()
        applied = site.run(path=str(site.path))
        assert applied["message"].endswith(words)
        assert "rest" not in site.names() and not site.run(path=str(site.path))["changed"]


def test_another_interpreter_is_another_environment(site, tmp_path):
    site.run()
    (site.path / "rest").write_text("")
    same = site.run(python=sys.executable)
    assert same["changed"] and "rest" in site.names()
    # The marker of an environment that another interpreter made.
    marker = json.loads((site.path / pe.MARKER).read_text())
    marker["python"]["version"] = "3.9.1"
    (site.path / pe.MARKER).write_text(json.dumps(marker))
    assert site.run(python="%d.%d" % sys.version_info[:2])["changed"]
    assert "rest" not in site.names()


@pytest.fixture
def torch(site, tmp_path):
    """A pinned build that only an index of its own has, as PyTorch's CPU builds are: the site's engine needs torch; the
    fallback has it, and a newer fleet-needed that must not be taken."""
    build_wheel(site.folder, "fleet-engine", "1.0", ["fleet-torch==2.0", "fleet-needed"])
    cpu = build_wheel(tmp_path / "other", "fleet-torch", "2.0+cpu", ["fleet-needed"])
    trap = build_wheel(tmp_path / "other", "fleet-needed", "5.0")
    index = build_index(tmp_path / "index", cpu, trap)
    return {
        "packages": ["fleet-engine==1.0"],
        "verify_imports": ["fleet_torch"],
        "fallback_indexes": [{"package": "fleet-torch==2.0+cpu", "index": index}],
    }


def test_only_that_package_comes_from_a_fallback_index(site, torch):
    check, applied = site.four_steps(**torch)
    assert check["diff"]["after"] == "fleet-engine==1.0\nfleet-torch==2.0+cpu\n"
    assert applied["packages"] == {"fleet-engine": "1.0", "fleet-torch": "2.0+cpu"}
    assert applied["diff"]["after"] == "fleet-engine==1.0\nfleet-needed==0.1\nfleet-torch==2.0+cpu\n"


def test_a_configured_place_comes_first_also_one_that_only_pip_knows(site, torch, tmp_path):
    """The interpreter has no pip, as Debian's own; the one beside uv has, as the toolkit's."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uv").symlink_to(UV)
    for path, pip in (
        (tools / "python", "echo \"global.find-links='%s %s'\"; exit 0" % (site.folder, tmp_path / "other")),
        (tmp_path / "python", "echo No module named pip >&2; exit 1"),
    ):
        script(path, '[ "$1 $2" = "-m pip" ] && { %s; }\nexec %s "$@"\n' % (pip, sys.executable))
    torch["fallback_indexes"][0]["index"] = "http://127.0.0.1:%d" % free_port()
    result = site.run(**torch, find_links=[], uv=str(tools / "uv"), python=str(tmp_path / "python"))
    assert result["packages"]["fleet-torch"] == "2.0+cpu", result


def test_an_environment_with_its_own_uv_as_the_toolkits(site, tmp_path):
    uv_wheel(site.folder, "0.99", UV)
    own = {"uv": None, "packages": ["fleet-demo==1.0", "uv>=0.9"]}
    check, applied = site.four_steps(**own)
    assert check["diff"]["after"] == "fleet-demo==1.0\nuv>=0.9\n"
    assert applied["packages"] == {"fleet-demo": "1.0", "uv": "0.99"}
    assert applied["diff"]["after"] == "fleet-demo==1.0\nfleet-needed==0.1\nuv==0.99\n"
    failed = site.run(**{**own, "packages": ["uv==3"]})
    assert failed["code"] == "venv.install-failed" and "-m pip uv==3" in failed["msg"]
    without = '[ "$2" = pip ] && { echo No module named pip >&2; exit 1; }\nexec %s "$@"\n' % sys.executable
    python = script(tmp_path / "python", without)
    alone = {"packages": ["uv>=0.9"], "verify_imports": ["uv"], "path": str(tmp_path / "other"), "python": python}
    after = site.run(**{**own, **alone})["diff"]["after"]
    assert "pip==" in after and after.endswith("\nuv==0.99\n")


def test_an_override_counts_instead_of_what_a_package_asks_for(site):
    build_wheel(site.folder, "fleet-picky", "1.0", ["fleet-needed>=9"])
    wish = {"packages": ["fleet-picky==1.0"], "verify_imports": []}
    assert "fleet-needed" in site.run(**wish)["msg"]
    result = site.run(**wish, overrides=["fleet-needed"])
    assert result["diff"]["after"] == "fleet-needed==0.1\nfleet-picky==1.0\n"
    assert site.run(**wish, overrides=["fleet-needed"])["changed"] is False
