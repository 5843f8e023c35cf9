# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where uv finds packages, and with which variables it runs."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node import uv
from ansible_collections.inference.fleet.tests.unit.node_helpers import script


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
    found = uv.pip_configuration([str(tmp_path / "absent"), without, python], {"PIP_FIND_LINKS": "/not/asked"})
    assert found == {
        "find-links": "/env/wheels",
        "extra-index-url": "\nhttps://one/simple\nhttps://two/simple",
        "index-url": "https://install-mirror/simple",
    }


def test_pip_configuration_of_a_node_without_pip():
    variables = {"PIP_FIND_LINKS": "/wheels", "PIP_CERT": "/ca.pem", "PATH": "/bin"}
    assert uv.pip_configuration([], variables) == {"find-links": "/wheels", "cert": "/ca.pem"}


def test_uv_is_given_the_places_of_pip_as_variables():
    pip = {
        "index-url": "https://user:secret@mirror/simple",
        "extra-index-url": "\nhttps://one/simple\nhttps://two/simple",
        "find-links": "/opt/wheels /more/wheels",
        "cert": "/ca.pem",
        "proxy": "http://proxy:3128",
        "trusted-host": "mirror",
        "no-index": "false",
    }
    variables, flags = uv.places(pip, {"UV_FIND_LINKS": "/uv/wheels"})
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


def test_own_places_come_before_those_of_pip():
    pip = {"index-url": "https://mirror/simple", "find-links": "/opt/wheels", "no-index": "true", "cert": "/pip.pem"}
    own = {"index_url": "https://own/simple", "extra_index_urls": ["https://more/simple"], "find_links": ["/own"]}
    variables, flags = uv.places(pip, {"SSL_CERT_FILE": "/site.pem"}, **own)
    assert variables == {
        "UV_DEFAULT_INDEX": "https://own/simple",
        "UV_INDEX": "https://more/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/own,/opt/wheels",
    }
    assert flags == []
    assert uv.places(pip, {})[1] == ["--no-index"]
    assert uv.places(pip, {"UV_DEFAULT_INDEX": "https://uv"})[0] == {
        "UV_FIND_LINKS": "/opt/wheels",
        "SSL_CERT_FILE": "/pip.pem",
    }


def test_children_may_write_bytecode_and_trust_the_bundle(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = uv.child_environment({"HTTPS_PROXY": "http://proxy"}, "/ca.pem")
    assert "PYTHONDONTWRITEBYTECODE" not in found and "PYTHONPATH" not in found
    assert (found["SSL_CERT_FILE"], found["PIP_CERT"], found["HTTPS_PROXY"]) == ("/ca.pem", "/ca.pem", "http://proxy")
    assert found["UV_PYTHON_DOWNLOADS"] == "never"
