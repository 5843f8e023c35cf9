# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""uv on a node: where it is, where it finds packages (where pip is configured to look), and what its failures mean."""

from __future__ import annotations

import ast
import contextlib
import glob
import json
import os
import re
import shutil

from ..errors import FleetError
from . import commands
from .directories import existing_parent
from .python import base_executable

OLDEST_PYTHON = (3, 9)
VERSION = re.compile(r"^\d+\.\d+$")
STDERR_LINES = 12
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
NO_NETWORK = re.compile(
    r"dns error|failed to lookup|name resolution|error sending request|tcp connect error|connection refused"
    r"|network is unreachable|timed out|failed to fetch|newconnectionerror|tunnel|certificate",
    re.IGNORECASE,
)
PROBE = (
    "import json, sys; print(json.dumps({'version': '%d.%d.%d' % sys.version_info[:3], "
    "'base_prefix': getattr(sys, 'base_prefix', sys.prefix)}))"
)
# What would lead a child interpreter elsewhere, or keep it from writing bytecode.
DROPPED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "UV_PYTHON", "UV_SYSTEM_PYTHON")


class CommandFailed(Exception):
    """A child process ended with a status other than 0."""

    def __init__(self, argv, status, output):
        super().__init__(output)
        self.argv = argv
        self.status = status
        self.output = output


def run(argv, environment, idle_s=commands.IDLE_S):
    """Standard output of a child process. Raises CommandFailed, OSError, FleetError. idle_s: see commands.run()."""
    # The service's user must be able to read what is installed, whatever the umask of the login.
    process = commands.run(argv, idle_s=idle_s, env=environment, umask=0o022)
    if process.returncode != 0:
        raise CommandFailed(argv, process.returncode, process.stderr + process.stdout)
    return process.stdout


def child_environment(more, ca_bundle=None):
    """The variables of child processes: this process's own without what misleads, and `more`."""
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
    if ca_bundle:
        environment.update(dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"), ca_bundle))
    environment.update(more)
    environment.update(UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    return environment


def find_python(python, environment, uv=None):
    """The absolute path of the interpreter that is asked for: a path, a command, or a version like 3.12. None: the one
    that runs this, or what its virtual environment was made from, which outlives that.

    A command is looked for in every folder of PATH, then where uv (a program, None without one) keeps interpreters,
    then beside those that are known; one that does not run, such as a version manager's stand-in, is passed over.
    Raises FleetError.
    """
    name = python and ("python" + python if VERSION.match(python) else python)
    candidates = _candidates(name, environment, uv) if name else [base_executable()]
    refused = []
    for found in candidates:
        try:
            version = probe_python(found, environment)["version"]
        except FleetError as error:
            refused.append((found, error))
            continue
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON:
            raise FleetError(
                "venv.interpreter-too-old",
                "%s is Python %s, too old: %d.%d or newer is needed. Set python to a newer interpreter.",
                (found, version, *OLDEST_PYTHON),
            )
        return found
    if len(refused) == 1:
        raise refused[0][1]
    if refused:
        raise FleetError(
            "venv.no-interpreter-runs",
            "No %s of this node runs. Tried: %s. Install one, or set python to the path of one that runs.",
            (name, "; ".join(error.message.rstrip(".") for _found, error in refused)),
        )
    raise FleetError(
        "venv.interpreter-missing",
        "There is no Python interpreter %s on this node; install it, or set python to one that is.",
        (name,),
    )


def _candidates(name, environment, uv):
    """Where an interpreter may be, best first, each looked for when those before it do not run."""
    seen = set()
    for path in _places_of(name, environment, uv):
        if path not in seen and os.path.isfile(path) and os.access(path, os.X_OK):
            seen.add(path)
            yield path


def _places_of(name, environment, uv):
    if os.path.dirname(name):
        yield name
        return
    folders = [folder or "." for folder in environment.get("PATH", os.defpath).split(os.pathsep)]
    for folder in folders:
        yield os.path.join(folder, name)
    version = VERSION.match(name[len("python") :]) if name.startswith("python") else None
    if not version:
        return
    if uv:
        with contextlib.suppress(CommandFailed, OSError):
            yield run([uv, "python", "find", "--managed-python", version.group()], environment).strip()
    # Version managers have their installations side by side: /opt/python/3.11/bin/python3.11 and .../3.12/bin/...
    for known in dict.fromkeys([base_executable(), *(os.path.join(folder, "python3") for folder in folders)]):
        with contextlib.suppress(FleetError):
            beside = os.path.dirname(probe_python(known, environment)["base_prefix"])
            if beside != "/":
                found = sorted(glob.glob(os.path.join(glob.escape(beside), "*", "bin", name)))
                yield from (
                    path for path in found if not os.path.exists(os.path.dirname(os.path.dirname(path)) + "/pyvenv.cfg")
                )


def probe_python(python, environment):
    """{version, base_prefix} of an interpreter. Raises FleetError where it does not run."""
    try:
        return json.loads(run([python, "-c", PROBE], environment, idle_s=None))
    except (CommandFailed, OSError, ValueError) as error:
        raise FleetError(
            "venv.interpreter-broken",
            "%s does not run as a Python interpreter: %s.",
            (python, last_lines(str(error), 1)),
        ) from error


def find_uv(uv, environment):
    """The absolute path of uv. Raises FleetError."""
    found = shutil.which(uv, path=environment.get("PATH", os.defpath))
    if found is None:
        raise FleetError(
            "venv.uv-missing", "There is no uv at %s; the toolkit role installs one, or set uv to where one is.", (uv,)
        )
    return found


def bootstrap(path, requirement, python, environment, find_links=(), index_url=None, extra_index_urls=()):
    """The path of a uv that pip installs into the environment at `path`, which is made where there is none."""
    own = os.path.join(path, "bin", "python")
    variables = {"PIP_INDEX_URL": index_url, "PIP_EXTRA_INDEX_URL": " ".join(extra_index_urls),
                 "PIP_FIND_LINKS": " ".join(find_links)}  # fmt: skip
    environment = {**environment, **{name: value for name, value in variables.items() if value}}
    try:
        if not os.path.exists(own):
            run([python, "-m", "venv", path], environment)
        run([own, "-m", "pip", "install", "--no-input", "--progress-bar", "off", requirement], environment)
    except CommandFailed as error:
        if "ensurepip" in error.output or "No module named venv" in error.output:
            version = probe_python(python, environment)["version"].rpartition(".")[0]
            raise FleetError(
                "venv.venv-module-incomplete",
                "%s cannot make virtual environments: its venv module is incomplete. "
                "Install the package python%s-venv (Debian, Ubuntu), or set python to another interpreter.",
                (python, version),
            ) from error
        raise failure("pip could not install %s" % requirement, path, error) from error
    return os.path.join(path, "bin", "uv")


def pip_configuration(pythons, environment):
    """What pip is configured with: {option: value}, for example {"find-links": "/wheels"}.

    pythons: interpreters to ask, the first that has pip answers. Where none has, only the PIP_* variables count.
    """
    lines = None
    for python in pythons:
        try:
            lines = run([python, "-m", "pip", "config", "list"], environment).splitlines()
            break
        except (CommandFailed, OSError):
            continue
    if lines is None:
        return {
            name[len("PIP_") :].lower().replace("_", "-"): value
            for name, value in environment.items()
            if name.startswith("PIP_")
        }
    sections = {"global": {}, "install": {}, ":env:": {}}
    for line in lines:
        key, equals, value = line.partition("=")
        section, _dot, option = key.rpartition(".")
        if equals and section in sections:
            sections[section][option] = str(ast.literal_eval(value))
    return {**sections["global"], **sections["install"], **sections[":env:"]}


def places(pip, environment, find_links=(), index_url=None, extra_index_urls=()):
    """(variables, flags) that make uv look where pip is configured to look, which uv does not read by itself.

    Places go through variables, never through arguments: their URLs may carry a password.
    """
    variables = {}
    flags = []
    index = index_url
    if index is None and not (environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")):
        index = pip.get("index-url")
        if pip.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t"):
            flags.append("--no-index")
    if index:
        variables["UV_DEFAULT_INDEX"] = index
    extra = [*extra_index_urls, *pip.get("extra-index-url", "").split()]
    if extra:
        variables["UV_INDEX"] = " ".join(extra + environment.get("UV_INDEX", "").split())
        # pip weighs all its indexes alike; uv's own rule stops at the first that knows the name.
        variables["UV_INDEX_STRATEGY"] = environment.get("UV_INDEX_STRATEGY") or "unsafe-best-match"
    links = [*find_links, *pip.get("find-links", "").split()]
    if links:
        links += filter(None, environment.get("UV_FIND_LINKS", "").split(","))
        variables["UV_FIND_LINKS"] = ",".join(links)
    if pip.get("cert") and not environment.get("SSL_CERT_FILE"):
        variables["SSL_CERT_FILE"] = pip["cert"]
    if pip.get("proxy") and not any(environment.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        variables["ALL_PROXY"] = pip["proxy"]
    if pip.get("trusted-host"):
        variables["UV_INSECURE_HOST"] = " ".join(pip["trusted-host"].split())
    return variables, flags


def failure(what, path, error):
    """The FleetError for a CommandFailed of an installation into `path`."""
    hints = network_hint(error.output) + space_hint(path, error.output)
    return FleetError(
        "venv.install-failed",
        "%s in %s (exit status %d):\n%s%s",
        (what, path, error.status, last_lines(error.output), hints),
        details={"stderr": without_credentials(error.output)},
    )


def last_lines(output, count=STDERR_LINES):
    return without_credentials("\n".join([line.rstrip() for line in output.splitlines() if line.strip()][-count:]))


def without_credentials(text):
    return CREDENTIALS.sub("***@", text)


def network_hint(output):
    if not NO_NETWORK.search(output):
        return ""
    return (
        "\nThe node may not reach that index: set fleet_pip_index_url to a mirror that it reaches, "
        "fleet_proxy_env to its proxy, or fleet_ca_bundle to the certificates it must trust."
    )


def space_hint(path, output):
    if "No space left" not in output and "os error 28" not in output and "Errno 28" not in output:
        return ""
    path = existing_parent(path)
    free = shutil.disk_usage(path).free / (1 << 30)
    return "\nThe disk is full: %s has %.1f GiB free. Free some, or choose another path." % (path, free)
