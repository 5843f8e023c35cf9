# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Python virtual environment that is there whole, or not at all.

An environment of ours carries a marker file with what was asked for and what came of it; it is written last.
While one is being made or changed it carries another marker instead, so that a broken one is never taken for whole.
"""

from __future__ import annotations

import ast
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node import files
from ansible_collections.inference.fleet.plugins.module_utils.node.directories import existing_parent, make_directory
from ansible_collections.inference.fleet.plugins.module_utils.node.python import base_executable
from ansible_collections.inference.fleet.plugins.module_utils.node.redact import checked_variables
from ansible_collections.inference.fleet.plugins.module_utils.server_spec import canonical

MARKER = ".inference-fleet.json"
PARTIAL = ".inference-fleet.partial"
MARKER_KEYS = {"inputs", "packages", "python", "real_python"}
SCHEMA = 1
OLDEST_PYTHON = (3, 9)
STDERR_LINES = 12

REQUIREMENT = re.compile(r"^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(.*)$")
PIN = re.compile(r"^==\s*([A-Za-z0-9.!+_-]+)$")
IMPORT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")
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


@dataclass(frozen=True)
class Wanted:
    """What an environment must be. The first block decides what it is, the second only where it comes from.

    create: False where the environment is somebody else's, which is only looked at.
    uv: path or name of a uv executable, None to use `python -m venv` and that environment's own pip.
    fallback_indexes: [{package: NAME==VERSION, index: URL}], asked only for a pin that no configured place has.
    environment: extra variables of every child process (proxies and the like).
    """

    path: str
    packages: list = field(default_factory=list)
    create: bool = True
    excludes: list = field(default_factory=list)
    python: str | None = None
    compile_bytecode: bool = True
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
        """Everything asked for by name: the packages, and the pins that may come from a fallback index."""
        pins = [fallback["package"] for fallback in self.fallback_indexes]
        return list(self.packages) + [pin for pin in pins if pin not in self.packages]

    @property
    def interpreter(self):
        """The environment's own python."""
        return os.path.join(self.path, "bin", "python")

    def inputs(self):
        """sha256 (hex) of what decides the environment. Indexes and proxies are not in it: a new mirror or a
        renewed token says where packages come from, not which."""
        return hashlib.sha256(
            canonical(
                {
                    "schema": SCHEMA,
                    "requirements": sorted(self.requirements),
                    "excludes": sorted(normalized(name) for name in self.excludes),
                    "python": self.python,
                    "installer": "uv" if self.uv else "pip",
                    "compile_bytecode": self.compile_bytecode,
                    "verify_imports": sorted(self.verify_imports),
                }
            )
        ).hexdigest()


class CommandFailed(Exception):
    """A child process ended with a status other than 0."""

    def __init__(self, argv, status, output):
        super().__init__(output)
        self.argv = argv
        self.status = status
        self.output = output


def from_parameters(parameters):
    """A Wanted from a module's parameters, with null taken for nothing."""
    given = {name: value for name, value in parameters.items() if value is not None}
    given["environment"] = checked_variables(given.get("environment"))
    return Wanted(**given)


def ensure(wanted, check_mode=False):
    """Bring the environment at `wanted.path` to what is wanted.

    Returns {changed, path, python, packages: {name: version} of the named ones, message, diff: {before, after}}.
    An environment that is as wanted costs no process and no network. Raises FleetError.
    """
    check_wanted(wanted)
    before = installed(wanted.path)
    if not wanted.create:
        check_present(wanted, before)
        return _result(wanted, False, "as wanted", before, before)
    marker, reason = compare(wanted, before)
    if reason is None:
        return _result(wanted, False, "as wanted", before, before)
    fresh = marker is None
    message = "%s %s in %s and what they need: %s" % (
        "would install" if check_mode else "installed",
        "%d package%s" % (len(wanted.requirements), "" if len(wanted.requirements) == 1 else "s"),
        wanted.path,
        reason,
    )
    if check_mode:
        return _result(wanted, True, message, before, _predicted(wanted, {} if fresh else before))
    try:
        apply(wanted, marker)
    except OSError as error:
        raise FleetError(
            "venv.cannot-make",
            "Cannot make the Python environment %s: %s.%s",
            (wanted.path, error, _space_hint(wanted.path, str(error))),
        ) from error
    return _result(wanted, True, message, before, installed(wanted.path))


def check_wanted(wanted):
    """Raise FleetError where the wish itself makes no sense."""
    if not os.path.isabs(wanted.path) or os.path.normpath(wanted.path) == "/":
        raise FleetError(
            "venv.path-not-absolute",
            "path is %r; it must be an absolute path of a directory of its own.",
            (wanted.path,),
        )
    if wanted.create and not wanted.requirements:
        raise FleetError("venv.packages-empty", "packages is empty; name at least one package, as NAME==VERSION.")
    for requirement in wanted.packages:
        match = REQUIREMENT.match(requirement)
        if not match or (match.group(2) and match.group(2)[0] not in "=<>!~@;("):
            raise FleetError(
                "venv.requirement-invalid",
                "packages: %r is no requirement; write NAME==VERSION or NAME @ URL.",
                (requirement,),
            )
    for name in wanted.excludes:
        match = REQUIREMENT.match(name)
        if not match or match.group(2):
            raise FleetError("venv.exclude-invalid", "excludes: %r is no package name; write the name alone.", (name,))
    for fallback in wanted.fallback_indexes:
        match = REQUIREMENT.match(fallback["package"])
        if not match or not PIN.match(match.group(2)):
            raise FleetError(
                "venv.fallback-not-pinned",
                "fallback_indexes: %r is not pinned; write NAME==VERSION, so that only that build comes from there.",
                (fallback["package"],),
            )
    for name in wanted.verify_imports:
        if not IMPORT.match(name):
            raise FleetError(
                "venv.module-name-invalid",
                "verify_imports: %r is no module name; write it as in an import statement.",
                (name,),
            )
    if wanted.uv is None and (wanted.excludes or wanted.fallback_indexes):
        raise FleetError(
            "venv.uv-needed", "excludes and fallback_indexes need uv: pip knows neither. Set uv to the path of a uv."
        )


def check_present(wanted, present):
    """Raise FleetError unless somebody else's environment is there with the named packages. Starts no process."""
    if not os.access(wanted.interpreter, os.X_OK):
        raise FleetError(
            "venv.missing",
            "There is no Python environment %s, and it is not to be created (create is false). Put it there, "
            "correct its path, or let it be created.",
            (wanted.path,),
        )
    for requirement in wanted.requirements:
        name, pin = required_name(requirement), PIN.match(REQUIREMENT.match(requirement).group(2))
        if name not in present or (pin and not same_version(pin.group(1), present[name])):
            raise FleetError(
                "venv.requirement-missing",
                "%s is needed in the Python environment %s, which has %s and is not to be changed (create is false).",
                (requirement, wanted.path, "%s %s" % (name, present[name]) if name in present else "none"),
            )


def normalized(name):
    """A package's name as indexes compare it (PyPA's name normalisation)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required_name(requirement):
    """The normalised name that a requirement asks for."""
    return normalized(REQUIREMENT.match(requirement).group(1))


def same_version(pin, version):
    """Whether a version is the pinned one. Trailing zeros do not count, nor a local part that the pin does not name."""

    def plain(text):
        return re.sub(r"(\.0)+$", "", re.sub(r"[-_]", ".", text.lower()))

    if "+" not in pin:
        version = version.partition("+")[0]
    (public, _plus, local), (other, _plus2, other_local) = pin.partition("+"), version.partition("+")
    return plain(public) == plain(other) and re.sub(r"[-_]", ".", local) == re.sub(r"[-_]", ".", other_local)


def installed(path):
    """{normalised name: version} of what is installed at `path`, from the names of its dist-info folders."""
    found = {}
    for folder in glob.glob(os.path.join(glob.escape(path), "lib", "python3*", "site-packages", "*.dist-info")):
        name, _dash, version = os.path.basename(folder)[: -len(".dist-info")].rpartition("-")
        found[normalized(name)] = version
    return found


def compare(wanted, present):
    """(marker, reason): the marker of a whole environment of ours or None; why it must change, None where it must not.

    present: {name: version} as `installed` gives it. Reads a few files, starts nothing. Raises FleetError where
    `wanted.path` holds something that is not ours.
    """
    try:
        names = set(os.listdir(wanted.path))
    except FileNotFoundError:
        return None, "there is none"
    except NotADirectoryError:
        in_the_way = wanted.path
        while not os.path.lexists(in_the_way):
            in_the_way = os.path.dirname(in_the_way)
        raise FleetError(
            "venv.not-a-directory", "%s is not a directory; remove it or choose another path.", (in_the_way,)
        ) from None
    except OSError as error:
        raise FleetError("venv.unreadable", "Cannot read %s: %s.", (wanted.path, error)) from error
    if PARTIAL in names:
        return None, "an earlier run left it half-made"
    if not names:
        return None, "there is none"
    if MARKER not in names:
        shown = ", ".join(sorted(names)[:5])
        raise FleetError(
            "venv.holds-other-files",
            "%s holds what this collection did not put there (%s); it is left as it is. "
            "Choose another path, or remove it.",
            (wanted.path, shown),
        )
    marker = files.read_json(os.path.join(wanted.path, MARKER))
    if not isinstance(marker, dict) or marker.get("schema") != SCHEMA or not set(marker) >= MARKER_KEYS:
        return None, "its marker file cannot be read"
    if not os.access(wanted.interpreter, os.X_OK) or marker["real_python"] != os.path.realpath(wanted.interpreter):
        return None, "its Python interpreter is gone or another one"
    for name, version in sorted(marker["packages"].items()):
        if present.get(name) != version:
            return marker, "%s %s is no longer in it" % (name, version)
    if marker["inputs"] != wanted.inputs():
        return marker, "it was made from other settings"
    return marker, None


def apply(wanted, marker):
    """Make or change the environment. marker: that of the whole environment that is there, or None."""
    environment = child_environment(wanted)
    python = find_python(wanted.python, environment)
    uv = find_uv(wanted.uv, environment)
    if marker is not None and not _same_interpreter(marker, python, wanted, environment):
        marker = None
    fresh = marker is None
    new_folder = not os.path.isdir(wanted.path)
    make_directory(wanted.path)
    files.write_atomic(os.path.join(wanted.path, PARTIAL), "")
    try:
        if fresh:
            _clear(wanted.path, keep=(PARTIAL,))
            _create(wanted, python, uv, environment)
        else:
            os.unlink(os.path.join(wanted.path, MARKER))
        _install(wanted, python, uv, environment)
        found = _verify(wanted, environment)
        probe = probe_python(wanted.interpreter, environment)
    except BaseException:
        # A changed environment stays, servers may run from it; its marker says that the next run starts over.
        if fresh:
            _clear(wanted.path, keep=())
            if new_folder:
                os.rmdir(wanted.path)
        raise
    files.write_atomic(
        os.path.join(wanted.path, MARKER),
        json.dumps(
            {
                "schema": SCHEMA,
                "inputs": wanted.inputs(),
                "packages": found,
                "python": probe,
                "real_python": os.path.realpath(wanted.interpreter),
            },
            indent=2,
            sort_keys=True,
        )
        + "\n",
    )
    os.unlink(os.path.join(wanted.path, PARTIAL))


def child_environment(wanted):
    """The variables of the child processes: this process's own, less what misleads, plus the wanted ones."""
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED}
    if wanted.ca_bundle:
        for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
            environment[name] = wanted.ca_bundle
    environment.update(wanted.environment)
    environment.update(UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    return environment


def find_python(python, environment):
    """The absolute path of the interpreter that is asked for. None: the one that runs this, or what its virtual
    environment was made from, which outlives that. Raises FleetError."""
    if python is None:
        found = base_executable()
    else:
        name = "python" + python if re.match(r"^\d+\.\d+$", python) else python
        found = shutil.which(name, path=environment.get("PATH", os.defpath))
        if found is None:
            raise FleetError(
                "venv.interpreter-missing",
                "There is no Python interpreter %s on this node; install it, or set python to one that is.",
                (name,),
            )
    version = probe_python(found, environment)["version"]
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_PYTHON:
        raise FleetError(
            "venv.interpreter-too-old",
            "%s is Python %s, too old: %d.%d or newer is needed. Set python to a newer interpreter.",
            (found, version, *OLDEST_PYTHON),
        )
    return found


def probe_python(python, environment):
    """{version, base_prefix} of an interpreter. Raises FleetError where it does not run."""
    try:
        return json.loads(_run([python, "-c", PROBE], environment))
    except (CommandFailed, OSError, ValueError) as error:
        raise FleetError(
            "venv.interpreter-broken",
            "%s does not run as a Python interpreter: %s.",
            (python, _last_lines(str(error), 1)),
        ) from error


def find_uv(uv, environment):
    """The absolute path of uv, None where none is wanted. Raises FleetError."""
    if uv is None:
        return None
    found = shutil.which(uv, path=environment.get("PATH", os.defpath))
    if found is None:
        raise FleetError(
            "venv.uv-missing", "There is no uv at %s; the toolkit role installs one, or set uv to where one is.", (uv,)
        )
    return found


def pip_configuration(pythons, environment):
    """What pip is configured with: {option: value}, for example {"find-links": "/wheels"}.

    pythons: interpreters to ask, the first that has pip answers. Where none has, only the PIP_* variables count.
    """
    lines = None
    for python in pythons:
        try:
            lines = _run([python, "-m", "pip", "config", "list"], environment).splitlines()
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


def uv_places(wanted, pip, environment):
    """(variables, flags) that make uv look where pip is configured to look, which uv does not read by itself.

    Places go through variables, never through arguments: their URLs may carry a password.
    """
    variables = {}
    flags = []
    index = wanted.index_url
    if index is None and not (environment.get("UV_DEFAULT_INDEX") or environment.get("UV_INDEX_URL")):
        index = pip.get("index-url")
        if pip.get("no-index", "").lower() in ("1", "true", "yes", "on", "y", "t"):
            flags.append("--no-index")
    if index:
        variables["UV_DEFAULT_INDEX"] = index
    extra = list(wanted.extra_index_urls) + pip.get("extra-index-url", "").split()
    if extra:
        variables["UV_INDEX"] = " ".join(extra + environment.get("UV_INDEX", "").split())
        # pip weighs all its indexes alike; uv's own rule stops at the first that knows the name.
        variables["UV_INDEX_STRATEGY"] = environment.get("UV_INDEX_STRATEGY") or "unsafe-best-match"
    links = list(wanted.find_links) + pip.get("find-links", "").split()
    if links:
        variables["UV_FIND_LINKS"] = ",".join(
            links + list(filter(None, environment.get("UV_FIND_LINKS", "").split(",")))
        )
    if pip.get("cert") and not environment.get("SSL_CERT_FILE"):
        variables["SSL_CERT_FILE"] = pip["cert"]
    if pip.get("proxy") and not any(environment.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY")):
        variables["ALL_PROXY"] = pip["proxy"]
    if pip.get("trusted-host"):
        variables["UV_INSECURE_HOST"] = " ".join(pip["trusted-host"].split())
    return variables, flags


def pip_places(wanted):
    """The variables that give pip the wanted places; pip reads its own configuration by itself."""
    variables = {}
    if wanted.index_url:
        variables["PIP_INDEX_URL"] = wanted.index_url
    if wanted.extra_index_urls:
        variables["PIP_EXTRA_INDEX_URL"] = " ".join(wanted.extra_index_urls)
    if wanted.find_links:
        variables["PIP_FIND_LINKS"] = " ".join(wanted.find_links)
    return variables


def _create(wanted, python, uv, environment):
    if uv:
        argv = [uv, "venv", "--allow-existing", "--python", python, wanted.path]
    else:
        argv = [python, "-m", "venv", wanted.path]
    try:
        _run(argv, environment)
    except CommandFailed as error:
        if "ensurepip" in error.output or "No module named venv" in error.output:
            version = probe_python(python, environment)["version"].rpartition(".")[0]
            raise FleetError(
                "venv.venv-module-incomplete",
                "%s cannot make virtual environments: its venv module is not whole. "
                "Install the package python%s-venv (Debian, Ubuntu), or set python to another interpreter.",
                (python, version),
            ) from error
        raise _failure("Cannot create the Python environment %s" % wanted.path, wanted, error) from error


def _install(wanted, python, uv, environment):
    if uv is None:
        argv = [wanted.interpreter, "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
        argv += [] if wanted.compile_bytecode else ["--no-compile"]
        try:
            _run(argv + wanted.requirements, {**environment, **pip_places(wanted)})
        except CommandFailed as error:
            raise _failure("pip could not install %s" % ", ".join(wanted.requirements), wanted, error) from error
        return
    pip = pip_configuration([python, os.path.join(os.path.dirname(uv), "python")], environment)
    variables, flags = uv_places(wanted, pip, environment)
    configured = {**environment, **variables}
    base = [uv, "pip", "install", "--python", wanted.interpreter]
    for fallback in wanted.fallback_indexes:
        _from_fallback_if_needed(wanted, fallback, base, flags, configured)
    with tempfile.TemporaryDirectory() as folder:
        # --exact takes away what is no longer wanted, what is excluded by now among it.
        argv = [*base, "--exact", *flags]
        if wanted.compile_bytecode:
            argv.append("--compile-bytecode")
        if wanted.excludes:
            excludes = os.path.join(folder, "excludes.txt")
            files.write_atomic(excludes, "".join(name + "\n" for name in wanted.excludes))
            argv += ["--excludes", excludes]
        try:
            _run(argv + wanted.requirements, configured)
        except CommandFailed as error:
            raise _failure("uv could not install %s" % ", ".join(wanted.requirements), wanted, error) from error


def _from_fallback_if_needed(wanted, fallback, base, flags, configured):
    """Install one pin, without what it needs, from its fallback index where the configured places have it not."""
    pin = fallback["package"]
    try:
        _run(base + flags + ["--dry-run", "--no-deps", pin], configured)
        return
    except CommandFailed as error:
        first = error
    only = {
        name: value
        for name, value in configured.items()
        if name not in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_FIND_LINKS", "UV_OFFLINE")
    }
    only["UV_DEFAULT_INDEX"] = fallback["index"]
    try:
        _run([*base, "--no-deps", pin], only)
    except CommandFailed as error:
        raise FleetError(
            "venv.package-not-found",
            "%s is neither where pip is configured to look nor at %s. Put its wheel into a directory that find_links "
            "names, or name an index that has it.\nThere:\n%s\nAt the fallback:\n%s%s",
            (
                pin,
                _redact(fallback["index"]),
                _last_lines(first.output),
                _last_lines(error.output),
                _network_hint(error.output),
            ),
            details={"stderr": _redact(error.output)},
        ) from error


def _verify(wanted, environment):
    """{name: version} of the named packages after checking that each is there, and that each import works."""
    present = installed(wanted.path)
    found = {}
    for requirement in wanted.requirements:
        name = required_name(requirement)
        specifier = REQUIREMENT.match(requirement).group(2)
        pin = PIN.match(specifier)
        if name not in present:
            if ";" in specifier:
                continue  # its marker says that this node does not need it
            raise FleetError(
                "venv.package-not-installed",
                "%s was installed without an error, but is not in %s; the index may hold a damaged package.",
                (requirement, wanted.path),
            )
        if pin and not same_version(pin.group(1), present[name]):
            raise FleetError(
                "venv.version-differs",
                "%s was asked for, but %s %s is in %s.",
                (requirement, name, present[name], wanted.path),
            )
        found[name] = present[name]
    for module in wanted.verify_imports:
        try:
            # -I: neither the working directory nor a user's own packages stand in for what is missing.
            _run([wanted.interpreter, "-I", "-c", "import " + module], environment)
        except CommandFailed as error:
            raise FleetError(
                "venv.import-failed",
                "%s is installed in %s, but `import %s` fails there: %s",
                (", ".join(wanted.requirements), wanted.path, module, _last_lines(error.output, 1)),
                details={"stderr": _redact(error.output)},
            ) from error
    return found


def _same_interpreter(marker, python, wanted, environment):
    if wanted.python is None:
        return True
    return probe_python(python, environment) == marker["python"]


def _run(argv, environment):
    """Standard output of a child process. Raises CommandFailed, OSError."""
    # The service's user must be able to read what is installed, whatever the umask of the login.
    process = subprocess.run(
        argv,
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        umask=0o022,
        check=False,
    )
    if process.returncode != 0:
        raise CommandFailed(argv, process.returncode, process.stderr + process.stdout)
    return process.stdout


def _failure(what, wanted, error):
    return FleetError(
        "venv.install-failed",
        "%s in %s (exit status %d):\n%s%s%s",
        (
            what,
            wanted.path,
            error.status,
            _last_lines(error.output),
            _network_hint(error.output),
            _space_hint(wanted.path, error.output),
        ),
        details={"stderr": _redact(error.output)},
    )


def _last_lines(output, count=STDERR_LINES):
    return _redact("\n".join([line.rstrip() for line in output.splitlines() if line.strip()][-count:]))


def _redact(text):
    return CREDENTIALS.sub("***@", text)


def _network_hint(output):
    if not NO_NETWORK.search(output):
        return ""
    return (
        "\nThe node may not reach that index: set fleet_pip_index_url to a mirror that it reaches, "
        "fleet_proxy_env to its proxy, or fleet_ca_bundle to the certificates it must trust."
    )


def _space_hint(path, output):
    if "No space left" not in output and "os error 28" not in output and "Errno 28" not in output:
        return ""
    path = existing_parent(path)
    return "\nThe disk is full: %s has %.1f GiB free. Free some, or choose another path." % (
        path,
        shutil.disk_usage(path).free / (1 << 30),
    )


def _clear(folder, keep):
    for name in os.listdir(folder):
        if name in keep or name == PARTIAL:
            continue
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    if PARTIAL not in keep:
        os.unlink(os.path.join(folder, PARTIAL))  # last: until then the rest is known to be half-made


def _predicted(wanted, before):
    """{name: version or what is asked for}: what can be said without asking an index."""
    after = dict(before)
    for requirement in wanted.requirements:
        pin = PIN.match(REQUIREMENT.match(requirement).group(2))
        name = required_name(requirement)
        if not (pin and name in after and same_version(pin.group(1), after[name])):
            after[name] = pin.group(1) if pin else REQUIREMENT.match(requirement).group(2)
    for name in wanted.excludes:
        after.pop(normalized(name), None)
    return after


def _result(wanted, changed, message, before, after):
    named = {required_name(requirement) for requirement in wanted.requirements}
    return {
        "changed": changed,
        "message": message,
        "path": wanted.path,
        "python": wanted.interpreter,
        "packages": {name: version for name, version in sorted(after.items()) if name in named},
        "diff": {"before": _listing(before), "after": _listing(after)},
    }


def _listing(packages):
    # What only check mode foresees stands there as it was asked for: "uv>=0.13", or a bare name.
    return "".join(
        "%s%s%s\n" % (name, "==" if version[:1].isalnum() else "", version)
        for name, version in sorted(packages.items())
    )
