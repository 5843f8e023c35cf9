# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Python virtual environment that is either complete or marked as incomplete, made by uv.

The marker file of an environment contains a hash of its settings and the installed packages; it is written last.
During a change the environment has another marker instead, so that an incomplete environment is never used.
"""

from __future__ import annotations

import ast
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ..errors import FleetError, argument_invalid
from . import commands, files
from .files import make_directory
from .os_errors import os_error
from .paths import NodePaths
from .python import base_executable
from .redact import checked_variables
from .server_spec import digest

MARKER = ".inference-fleet.json"
PARTIAL = ".inference-fleet.partial"
MARKER_KEYS = {"inputs", "packages", "python", "real_python"}
OWN_FOLDER = NodePaths("").lib + "/"  # contains only environments of this collection
SCHEMA = 1
LAST = 12  # lines of a failed command in messages
REQUIREMENT = re.compile(r"^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*([=<>!~@;(].*)?$")
PIN = re.compile(r"^==\s*([A-Za-z0-9.!+_-]+)$")
IMPORT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")
VERSION = re.compile(r"^\d+\.\d+$")
NO_PIP = re.compile("No module named '?pip|no such option: --python")
COMPILER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bytecode.py")
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
# These would lead a child interpreter elsewhere, or keep it from writing bytecode.
DROPPED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "UV_PYTHON", "UV_SYSTEM_PYTHON")
INDEX_VARIABLES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_FIND_LINKS", "UV_OFFLINE")


@dataclass(frozen=True)
class Desired:
    """An environment as planned. The first block decides its content, the second where the content comes from.

    create: False for an environment that is only checked. uv: path or name of uv; None for an environment with uv among
    its packages, which pip installs first. fallback_indexes: [{package: NAME==VERSION, index: URL}] of packages that no
    configured index has. environment: further variables of child processes.
    """

    path: str
    packages: list = field(default_factory=list)
    create: bool = True
    excludes: list = field(default_factory=list)
    overrides: list = field(default_factory=list)
    python: str | None = None
    verify_imports: list = field(default_factory=list)

    uv: str | None = None
    find_links: list = field(default_factory=list)
    index_url: str | None = None
    extra_index_urls: list = field(default_factory=list)
    fallback_indexes: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)
    ca_bundle: str | None = None

    @property
    def requirements(self):
        """The packages, and those from fallback indexes."""
        return list(dict.fromkeys([*self.packages, *(one["package"] for one in self.fallback_indexes)]))

    @property
    def interpreter(self):
        """The environment's Python."""
        return os.path.join(self.path, "bin", "python")

    def inputs(self):
        """sha256 (hex) of the settings that decide the content. Indexes and proxies are not part of it."""
        decides = {
            "schema": SCHEMA,
            "requirements": sorted(self.requirements),
            "excludes": sorted(normalized(name) for name in self.excludes),
            "python": self.python,
            "installer": "uv" if self.uv else "pip",
            "compile_bytecode": True,  # as in existing markers
            "verify_imports": sorted(self.verify_imports),
            **({"overrides": sorted(self.overrides)} if self.overrides else {}),
        }
        return digest(decides)


def ensure(desired, check_mode=False):
    """Create or change the environment. Returns {changed, path, python, packages: {name: version}, message, diff}.

    A complete environment costs no process and no network. Raises FleetError.
    """
    check(desired)
    try:
        return _ensure(desired, check_mode)
    except OSError as error:
        raise os_error("The Python environment %s cannot be made" % desired.path, error) from error


def _ensure(desired, check_mode):
    before = installed(desired.path)
    if not desired.create:
        check_present(desired, before)
        return _result(desired, False, "up to date", before, before)
    reason = compare(desired, before)[1]
    if reason is None:
        return _result(desired, False, "up to date", before, before)
    verb = "would install" if check_mode else "installed"
    message = "%s %s in %s: %s" % (verb, ", ".join(desired.requirements), desired.path, reason)
    if check_mode:
        return _result(desired, True, message, before, None)
    make_directory(desired.path)
    with files.folder_lock(desired.path):
        before = installed(desired.path)
        marker, reason = compare(desired, before)
        if reason is None:  # another run has installed it meanwhile
            return _result(desired, False, "up to date", before, before)
        _apply(desired, marker)
    return _result(desired, True, message, before, installed(desired.path))


def check(desired):
    """Raises FleetError if a parameter is not valid."""
    rows = [("path", desired.path, os.path.isabs(desired.path) and os.path.normpath(desired.path) != "/",
             "an absolute path of a separate directory")]  # fmt: skip
    for key, values in (("packages", desired.packages), ("overrides", desired.overrides)):
        rows += [(key, one, REQUIREMENT.match(one), "NAME==VERSION or NAME @ URL") for one in values]
    for name in desired.excludes:
        found = REQUIREMENT.match(name)
        rows.append(("excludes", name, found and not found.group(2), "a package name"))
    for one in desired.fallback_indexes:
        found = REQUIREMENT.match(one["package"])
        rows.append(("fallback_indexes", one["package"], found and _pin(one["package"]), "NAME==VERSION"))
    rows += [("verify_imports", name, IMPORT.match(name), "a module name") for name in desired.verify_imports]
    if desired.create:
        rows.append(("packages", desired.packages, desired.requirements, "at least one package"))
        rows.append(("uv", desired.uv, desired.uv or _own_uv(desired), "the path of uv, or uv among the packages"))
    for key, value, valid, allowed in rows:
        if not valid:
            raise argument_invalid(key, value, allowed)


def check_present(desired, present):
    """Raises FleetError unless the environment exists with the named packages. Starts no process."""
    if not os.access(desired.interpreter, os.X_OK):
        raise _not_as_required(desired, "a Python interpreter", "none")
    for requirement, found in _unmet(desired, present).items():
        raise _not_as_required(desired, requirement, found)


def _unmet(desired, present):
    """{requirement: the installed version, or "none"} of the requirements that are not met."""
    unmet = {}
    for requirement in desired.requirements:
        found, pin = present.get(required_name(requirement), "none"), _pin(requirement)
        if found == "none" or (pin and not same_version(pin, found)):
            unmet[requirement] = found
    return unmet


def _required(desired, present):
    """{name: version} of the required packages that are installed."""
    names = sorted(map(required_name, desired.requirements))
    return {name: present[name] for name in names if name in present}


def _not_as_required(desired, wanted, found):
    return FleetError("venv.not-as-required", desired.path, wanted, found)


def normalized(name):
    """A package's name as indexes compare it (PyPA's name normalisation)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required_name(requirement):
    """The normalised name in a requirement."""
    return normalized(REQUIREMENT.match(requirement).group(1))


def _pin(requirement):
    """The version of a pinned requirement, or None."""
    found = PIN.match(REQUIREMENT.match(requirement).group(2) or "")
    return found and found.group(1)


def _own_uv(desired):
    return next((one for one in desired.packages if required_name(one) == "uv"), None)


def same_version(pin, version):
    """Whether a version is the pinned version. Trailing zeros are ignored, and a local part that the pin lacks."""
    (public, plus, local), (other, _plus, other_local) = (
        re.sub(r"[-_]", ".", one.lower()).partition("+") for one in (pin, version)
    )
    zeros = re.compile(r"(\.0)+$")
    return zeros.sub("", public) == zeros.sub("", other) and (not plus or local == other_local)


# ---- the installed packages


def installed(path):
    """{normalised name: version} of the packages at `path`. Imports nothing."""
    return {name: version for name, version, _folder in _distributions(path)}


def _distributions(path):
    """Yield (normalised name, version, metadata folder) of the packages at `path`."""
    for folder in glob.glob(os.path.join(glob.escape(path), "lib", "python3*", "site-packages", "*.dist-info")):
        name, _dash, version = os.path.basename(folder)[: -len(".dist-info")].rpartition("-")
        yield normalized(name), version, folder


def compare(desired, present):
    """(marker of an environment that can be changed in place or None, reason for a change or None).

    present: installed(). Starts no process. Raises OSError, and FleetError if the path contains other files.
    """
    try:
        names = set(os.listdir(desired.path))
    except FileNotFoundError:
        names = set()
    if not names or PARTIAL in names:
        return None, "an earlier run left it incomplete" if names else "it does not exist"
    if MARKER not in names and OWN_FOLDER not in desired.path:
        raise FleetError("venv.path-taken", desired.path, ", ".join(sorted(names)[:5]))
    marker = files.read_json(os.path.join(desired.path, MARKER))
    if not isinstance(marker, dict) or marker.get("schema") != SCHEMA or not set(marker) >= MARKER_KEYS:
        return None, "it has no valid marker file"
    if not os.access(desired.interpreter, os.X_OK) or marker["real_python"] != os.path.realpath(desired.interpreter):
        return None, "its Python interpreter is missing or another one"
    for name, version in sorted(marker["packages"].items()):
        if present.get(name) != version:
            return marker, "%s %s is missing" % (name, version)
    if marker["inputs"] == desired.inputs():
        return marker, None
    return marker if _is_of_python(marker, desired.python) else None, "its settings changed"


def _is_of_python(marker, python):
    """Whether the environment with this marker is one of the planned interpreter (see find_python())."""
    if python and VERSION.match(python):
        return (marker["python"]["version"] + ".").startswith(python + ".")
    return not python or os.path.realpath(shutil.which(python) or python) == marker["real_python"]


# ---- installation


def _apply(desired, marker):
    environment = child_environment(desired.environment, desired.ca_bundle)
    partial = os.path.join(desired.path, PARTIAL)
    files.write_atomic(partial, "")
    if marker is None:
        for name in set(os.listdir(desired.path)) - {PARTIAL}:
            files.remove(os.path.join(desired.path, name))
        python = find_python(desired.python)
        make = [desired.uv, "venv", "--allow-existing", "--python", python]
        make = make if desired.uv else [python, "-m", "venv", "--without-pip"]
        _check_done(run([*make, desired.path], environment), desired)
    else:
        os.unlink(os.path.join(desired.path, MARKER))
    _install(desired, desired.uv or _bootstrap(desired, environment), environment)
    with ThreadPoolExecutor() as pool:
        compiling = pool.submit(_compile, desired, environment)
        found = _verify(desired, environment)
    compiling.result()
    folder = next(iter(glob.glob(os.path.join(glob.escape(desired.path), "lib", "python3*"))), "")
    content = {
        "schema": SCHEMA,
        "inputs": desired.inputs(),
        "packages": found,
        "python": {"version": folder.rpartition("python")[2]},
        "real_python": os.path.realpath(desired.interpreter),
    }
    files.write_atomic(os.path.join(desired.path, MARKER), json.dumps(content, indent=2, sort_keys=True) + "\n")
    os.unlink(partial)


def _bootstrap(desired, environment):
    """The path of uv, installed by pip into the environment."""
    given = {"PIP_INDEX_URL": desired.index_url, "PIP_EXTRA_INDEX_URL": " ".join(desired.extra_index_urls),
             "PIP_FIND_LINKS": " ".join(desired.find_links)}  # fmt: skip
    environment = {**environment, **{name: value for name, value in given.items() if value}}
    _check_done(install_uv(find_python(desired.python), desired.path, _own_uv(desired), environment), desired)
    return os.path.join(desired.path, "bin", "uv")


def install_uv(python, folder, requirement, environment):
    """The CompletedProcess of the installation of uv into a virtual environment without pip.

    python: an interpreter outside; its pip is used if it is of 22.3 or newer. Otherwise ensurepip installs one, which
    takes several seconds.
    """
    inside = os.path.join(folder, "bin", "python")
    install = ["install", "--no-input", "--quiet", requirement]
    done = run([python, "-m", "pip", "--python", inside, *install], environment)
    if done.returncode and NO_PIP.search(done.stderr + done.stdout):
        run([inside, "-m", "ensurepip"], environment)
        done = run([inside, "-m", "pip", *install], environment)
    return done


def _install(desired, uv, environment):
    pip = pip_configuration([os.path.join(os.path.dirname(uv), "python"), base_executable()], environment)
    variables, flags = places(pip, environment, desired.find_links, desired.index_url, desired.extra_index_urls)
    environment = {**environment, **variables}
    argv = [uv, "pip", "install", "--python", desired.interpreter]
    for fallback in desired.fallback_indexes:
        if run([*argv, *flags, "--dry-run", "--no-deps", fallback["package"]], environment).returncode:
            other = {name: value for name, value in environment.items() if name not in INDEX_VARIABLES}
            other["UV_DEFAULT_INDEX"] = fallback["index"]
            _check_done(run([*argv, "--no-deps", fallback["package"]], other), desired)
    with tempfile.TemporaryDirectory() as folder:
        # --exact removes packages that are no longer required, or excluded
        argv += ["--exact", *flags]
        for option, lines in (("excludes", desired.excludes), ("overrides", desired.overrides)):
            if lines:
                files.write_atomic(os.path.join(folder, option), "".join(line + "\n" for line in lines))
                argv += ["--" + option, os.path.join(folder, option)]
        _check_done(run([*argv, *desired.requirements], environment), desired)


def _compile(desired, environment):
    """Write the bytecode of what the programs of the required packages import. Without it they only start slower."""
    from importlib.metadata import Distribution  # takes long to import, and a check does not need it

    names, roots = {required_name(one) for one in desired.requirements}, set(desired.verify_imports)
    for name, _version, folder in _distributions(desired.path):
        if name in names:
            scripts = Distribution.at(folder).entry_points
            roots.update(one.module for one in scripts if one.group == "console_scripts")
    run([desired.interpreter, "-I", COMPILER, *sorted(roots)], environment)


def _verify(desired, environment):
    """{name: version} of the required packages. Raises FleetError if one is missing or cannot be imported."""
    present = installed(desired.path)
    for requirement, found in _unmet(desired, present).items():
        if found != "none" or ";" not in requirement:  # else its marker does not apply to this node
            what = "The installation of " + requirement
            raise _failed(desired, what, "uv reported no error, but the environment has %s" % found)
    for module in desired.verify_imports:
        # -I: packages of the working directory or of a user are not imported instead
        _check_done(run([desired.interpreter, "-I", "-c", "import " + module], environment), desired)
    return _required(desired, present)


def _check_done(done, desired):
    """Raises FleetError if a child process of an installation failed."""
    if done.returncode:
        what = " ".join([os.path.basename(done.args[0]), *done.args[1:3], done.args[-1]])
        output = CREDENTIALS.sub("***@", done.stderr + done.stdout)
        lines = [line.rstrip() for line in output.splitlines() if line.strip()]
        raise _failed(desired, what, "\n".join(lines[-LAST:]), output)


def _failed(desired, what, reason, output=""):
    return FleetError("venv.install-failed", what, desired.path, reason, details={"stderr": output})


def run(argv, environment):
    """The CompletedProcess of a child process, also if it cannot be executed. Raises FleetError."""
    try:
        # the servers' account must be able to read the files, with any umask
        return commands.run(argv, idle_s=commands.IDLE_S, env=environment, umask=0o022)
    except OSError as error:
        return subprocess.CompletedProcess(argv, 127, "", str(error))


def child_environment(more, ca_bundle=None):
    """The variables of child processes: those of this process except DROPPED, and `more`."""
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
    # version managers install interpreters next to each other: /opt/python/3.11/bin and /opt/python/3.12/bin
    versions = os.path.dirname(os.path.dirname(os.path.dirname(base_executable())))
    if versions.count("/") > 1:  # not of /usr/bin and /usr/local/bin: /tmp/bin may belong to any account
        folders = sorted(glob.glob(os.path.join(glob.escape(versions), "*", "bin")))
        environment["PATH"] = os.pathsep.join([environment.get("PATH", os.defpath), *folders])
    if ca_bundle:
        environment.update(dict.fromkeys(("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"), ca_bundle))
    return {**environment, **more, "UV_PYTHON_DOWNLOADS": "never", "UV_PYTHON_PREFERENCE": "system",
            "UV_NO_PROGRESS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}  # fmt: skip


def find_python(python):
    """The interpreter for uv and venv: `python` is a path, a command or a version such as 3.12; None is the interpreter
    from which the environment of this interpreter was made."""
    return ("python" + python if VERSION.match(python) else python) if python else base_executable()


# ---- indexes


def pip_configuration(pythons, environment):
    """{option: value} of pip's configuration, from the first of these interpreters that has pip, else from PIP_*."""
    for python in pythons:
        done, found = run([python, "-m", "pip", "config", "list"], environment), {}
        if done.returncode:
            continue
        for section in ("global.", "install.", ":env:."):
            given = (line.partition("=") for line in done.stdout.splitlines() if line.startswith(section))
            found.update({key[len(section) :]: str(ast.literal_eval(value)) for key, _equals, value in given})
        return found
    return {
        name[len("PIP_") :].lower().replace("_", "-"): value
        for name, value in environment.items()
        if name.startswith("PIP_")
    }


def places(pip, environment, find_links=(), index_url=None, extra_index_urls=()):
    """(variables, flags) with which uv uses pip's indexes. URLs may contain passwords, so they are no arguments."""
    index, flags = index_url, []
    if index is None and not (environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")):
        index = pip.get("index-url")
        flags = ["--no-index"] if pip.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t") else []
    extra = [*extra_index_urls, *pip.get("extra-index-url", "").split()]
    links = [*find_links, *pip.get("find-links", "").split()]
    proxies = any(environment.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"))
    variables = {
        "UV_DEFAULT_INDEX": index,
        "UV_INDEX": " ".join([*extra, *environment.get("UV_INDEX", "").split()]) if extra else None,
        # pip considers all indexes; uv stops at the first index with the package
        "UV_INDEX_STRATEGY": (environment.get("UV_INDEX_STRATEGY") or "unsafe-best-match") if extra else None,
        "UV_FIND_LINKS": ",".join([*links, *filter(None, environment.get("UV_FIND_LINKS", "").split(","))]),
        "SSL_CERT_FILE": environment.get("SSL_CERT_FILE") or pip.get("cert"),
        "ALL_PROXY": None if proxies else pip.get("proxy"),
        "UV_INSECURE_HOST": " ".join(pip.get("trusted-host", "").split()),
    }
    return {name: value for name, value in variables.items() if value}, flags


def from_parameters(parameters):
    """Desired from the arguments of the operation; null means the default."""
    given = {name: value for name, value in parameters.items() if value is not None}
    given["environment"] = checked_variables(given.get("environment"))
    return Desired(**given)


def _result(desired, changed, message, before, after):
    """after: installed packages, or None in check mode."""
    return {
        "changed": changed,
        "message": message,
        "path": desired.path,
        "python": desired.interpreter,
        "packages": _required(desired, after or {}),
        "diff": {
            "before": _listing(before),
            "after": "".join(one + "\n" for one in sorted(desired.requirements)) if after is None else _listing(after),
        },
    }


def _listing(packages):
    return "".join("%s==%s\n" % item for item in sorted(packages.items()))
