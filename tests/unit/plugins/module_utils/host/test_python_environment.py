# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python environments without an installation: parameters, indexes, and failures of tools."""

from __future__ import annotations

import concurrent.futures
import json
import sys
import threading

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import files
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host import python_environment as pe
from ansible_collections.inference.fleet.tests.unit.engines.plans import error as failed
from ansible_collections.inference.fleet.tests.unit.engines.small_node import wait_until
from ansible_collections.inference.fleet.tests.unit.node_helpers import script


def desired(tmp_path, **arguments):
    return pe.Desired(**{"path": str(tmp_path / "env"), "packages": ["demo==1.0"], "uv": "uv", **arguments})


@pytest.mark.parametrize(("arguments", "key", "value"), [
    ({"path": "env"}, "path", "env"), ({"path": "/tmp/.."}, "path", "/tmp/.."),
    ({"packages": []}, "packages", []),
    ({"packages": ["https://host/demo.whl"]}, "packages", "https://host/demo.whl"),
    ({"packages": ["-e ."]}, "packages", "-e ."), ({"overrides": ["--no-deps"]}, "overrides", "--no-deps"),
    ({"excludes": ["triton==3"]}, "excludes", "triton==3"),
    ({"fallback_indexes": [{"package": "torch>=2", "index": "x"}]}, "fallback_indexes", "torch>=2"),
    ({"verify_imports": ["os; x()"]}, "verify_imports", "os; x()"),
    ({"uv": None}, "uv", None),
])  # fmt: skip
def test_parameters_that_are_not_valid(tmp_path, arguments, key, value):
    error = failed(pe.ensure, desired(tmp_path, **arguments), check_mode=True)
    assert (error.code, error.values[:2]) == ("arguments.value-invalid", (key, value))


def test_requirements_that_are_valid():
    for requirement in "demo", "demo==1", "demo[extra]>=1,<2", "demo @ https://host/d.whl", "demo; python_version<'3'":
        assert pe.required_name(requirement) == "demo"


@pytest.mark.parametrize(("pin", "version", "same"), [
    ("0.32.0", "0.32.0", True), ("0.32", "0.32.0", True), ("0.32.0", "0.32.1", False),
    ("2.13.0+cpu", "2.13.0+cpu", True), ("2.13.0", "2.13.0+cpu", True), ("2.13.0+cpu", "2.13.0", False),
    ("2.13.0+cpu", "2.13.0+cu128", False), ("1.0+ubuntu-1", "1.0+ubuntu.1", True),
])  # fmt: skip
def test_same_version(pin, version, same):
    assert pe.same_version(pin, version) is same


CHANGES = [{"packages": ["demo==1.1"]}, {"excludes": ["triton"]}, {"overrides": ["certifi"]}, {"uv": None},
           {"verify_imports": ["demo"]}, {"python": "3.11"},
           {"fallback_indexes": [{"package": "torch==2", "index": "https://host"}]}]  # fmt: skip


def test_sources_of_packages_do_not_change_an_environment(tmp_path):
    elsewhere = {"uv": "/b/uv", "index_url": "https://user:token@mirror/simple", "find_links": ["/wheels"],
                 "environment": {"HTTPS_PROXY": "http://proxy"}}  # fmt: skip
    inputs = [desired(tmp_path, **one).inputs() for one in ({}, elsewhere, *CHANGES)]
    assert inputs[0] == inputs[1] and len(set(inputs)) == len(CHANGES) + 1


# ---- failures of uv


def test_a_missing_uv_is_an_error_except_in_check_mode(tmp_path):
    wish = desired(tmp_path, uv="/nowhere/uv", python=sys.executable)
    error = failed(pe.ensure, wish)
    assert (error.code, "/nowhere/uv" in error.values[2]) == ("venv.install-failed", True)
    assert pe.ensure(wish, check_mode=True)["changed"]  # an earlier task would have installed it


def fake_uv(tmp_path, install):
    """A uv that creates environments that run, and installs with this shell script."""
    venv = 'if [ "$1" = venv ]; then mkdir -p "$5/bin"; ln -s %s "$5/bin/python"; exit 0; fi\n' % sys.executable
    return script(tmp_path / "uv", venv + install)


def test_a_failure_has_uvs_words_without_passwords_and_leaves_an_incomplete_environment(tmp_path):
    uv = fake_uv(tmp_path, "echo 'error: https://user:s3cret@host/simple/demo/: 401' >&2; exit 1")
    error = failed(pe.ensure, desired(tmp_path, uv=uv))
    assert (error.code, "https://***@host/simple/demo/: 401" in error.values[2]) == ("venv.install-failed", True)
    assert "s3cret" not in error.message + json.dumps(error.details)
    assert pe.compare(desired(tmp_path), {}) == (None, "an earlier run left it incomplete")


def test_a_uv_that_succeeds_without_installing_is_an_error(tmp_path):
    error = failed(pe.ensure, desired(tmp_path, uv=fake_uv(tmp_path, "exit 0")))
    assert (error.code, "none" in error.values[2]) == ("venv.install-failed", True)
    other = fake_uv(tmp_path, 'mkdir -p "$(dirname $4)/../lib/python3.11/site-packages/demo-2.0.dist-info"')
    assert "2.0" in failed(pe.ensure, desired(tmp_path, uv=other)).values[2]
    assert pe.ensure(desired(tmp_path, packages=["demo==1.0; python_version < '3'"], uv=fake_uv(tmp_path, "exit 0")))


@pytest.mark.parametrize("first_fails", [False, True])
def test_of_two_runs_at_once_one_waits_for_the_other(tmp_path, monkeypatch, first_fails):
    """The second uses the environment of the first, or creates it if the first failed."""
    site = '"$(dirname $4)/../lib/python3.11/site-packages/demo-1.0.dist-info"'
    install = 'mkdir -p {0}; printf "Name: demo\\nVersion: 1.0\\n" > {0}/METADATA'.format(site)
    held = "while ! [ -e {}/go ]; do sleep 0.01; done\n".format(tmp_path)
    if first_fails:
        held += "if mkdir {}/failed 2> /dev/null; then exit 1; fi\n".format(tmp_path)
    wish = desired(tmp_path, uv=fake_uv(tmp_path, held + install))
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


def test_a_path_below_a_file_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    error = failed(pe.ensure, desired(tmp_path, path=str(tmp_path / "file" / "env"), uv=fake_uv(tmp_path, "exit 0")))
    assert error.code == "node.os-error"


# ---- environments of others


@pytest.mark.parametrize(("present", "found"), [
    ([], "none"),
    (["bin/python"], "none"),
    (["bin/python", "lib/python3.11/site-packages/demo-2.0.dist-info/METADATA"], "2.0"),
    (["bin/python", "lib/python3.11/site-packages/demo-1.0.dist-info/METADATA"], None),
])  # fmt: skip
def test_an_environment_that_is_not_created_is_only_checked(tmp_path, present, found):
    for name in present:
        file = tmp_path / "env" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        file.chmod(0o755)
    wish = desired(tmp_path, create=False)
    if found:
        error = failed(pe.ensure, wish)
        assert (error.code, error.values[2]) == ("venv.not-as-required", found)
    else:
        result = pe.ensure(wish)
        assert (result["changed"], result["packages"]) == (False, {"demo": "1.0"})
        assert sorted(path.name for path in (tmp_path / "env").iterdir()) == ["bin", "lib"]


# ---- indexes


def test_the_configuration_of_pip_is_read_from_pip_or_from_its_variables(tmp_path):
    # as pip 23.0 and 25.0 print it: strings of Python, several values in a string
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
    variables = {"PIP_FIND_LINKS": "/wheels", "PIP_CERT": "/ca.pem", "PATH": "/bin"}
    assert pe.pip_configuration([], variables) == {"find-links": "/wheels", "cert": "/ca.pem"}


MIRROR = {"index-url": "https://user:secret@mirror/simple", "extra-index-url": "\nhttps://one/simple\nhttps://two/simple",
          "find-links": "/opt/wheels /more/wheels", "cert": "/ca.pem", "proxy": "http://proxy:3128",
          "trusted-host": "mirror", "no-index": "false"}  # fmt: skip
OWN = {"index_url": "https://own/simple", "extra_index_urls": ["https://more/simple"], "find_links": ["/own"]}
CLOSED = {"index-url": "https://mirror/simple", "find-links": "/opt/wheels", "no-index": "true", "cert": "/pip.pem"}
BEST = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


@pytest.mark.parametrize(("pip", "environment", "own", "variables", "flags"), [
    (MIRROR, {"UV_FIND_LINKS": "/uv/wheels"}, {}, {
        "UV_DEFAULT_INDEX": "https://user:secret@mirror/simple", "UV_INDEX": "https://one/simple https://two/simple",
        "UV_FIND_LINKS": "/opt/wheels,/more/wheels,/uv/wheels", "SSL_CERT_FILE": "/ca.pem",
        "ALL_PROXY": "http://proxy:3128", "UV_INSECURE_HOST": "mirror", **BEST}, []),
    (CLOSED, {"SSL_CERT_FILE": "/site.pem"}, OWN, {
        "UV_DEFAULT_INDEX": "https://own/simple", "UV_INDEX": "https://more/simple",
        "UV_FIND_LINKS": "/own,/opt/wheels", "SSL_CERT_FILE": "/site.pem", **BEST}, []),
    (CLOSED, {"UV_DEFAULT_INDEX": "https://uv"}, {}, {"UV_FIND_LINKS": "/opt/wheels", "SSL_CERT_FILE": "/pip.pem"}, []),
    (CLOSED, {}, {}, {"UV_DEFAULT_INDEX": "https://mirror/simple", "UV_FIND_LINKS": "/opt/wheels",
                      "SSL_CERT_FILE": "/pip.pem"}, ["--no-index"]),
])  # fmt: skip
def test_uv_gets_the_indexes_of_parameters_and_of_pip_as_variables(pip, environment, own, variables, flags):
    assert pe.places(pip, environment, **own) == (variables, flags)


def test_children_write_bytecode_and_trust_the_certificates(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = pe.child_environment({"HTTPS_PROXY": "http://proxy"}, "/ca.pem")
    assert "PYTHONDONTWRITEBYTECODE" not in found and "PYTHONPATH" not in found
    assert (found["SSL_CERT_FILE"], found["PIP_CERT"], found["HTTPS_PROXY"]) == ("/ca.pem", "/ca.pem", "http://proxy")
    assert found["UV_PYTHON_DOWNLOADS"] == "never"


@pytest.mark.parametrize(
    ("python", "found"),
    [("/opt/python/3.11.2/bin/python3.11", True), ("/usr/bin/python3", False), ("/usr/local/bin/python3", False)],
)
def test_other_versions_of_a_version_manager_are_on_the_path(monkeypatch, python, found):
    monkeypatch.setattr(pe, "base_executable", lambda: python)
    monkeypatch.setattr(pe.glob, "glob", lambda pattern: [pattern.replace("*", "other")])
    assert pe.child_environment({})["PATH"].endswith("/opt/python/other/bin") is found
