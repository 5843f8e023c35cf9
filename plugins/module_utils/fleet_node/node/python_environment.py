# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Python virtual environment that is either complete or not there, made by uv.

An environment of ours carries a marker file with what was asked for and what was installed; it is written last. While
one is being made or changed it carries another marker instead, so that an incomplete one is never taken for complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field

from ..errors import FleetError
from . import files, uv
from .directories import make_directory
from .installed_packages import damaged_file, installed, normalized
from .paths import NodePaths
from .redact import checked_variables
from .server_spec import canonical

MARKER = ".inference-fleet.json"
PARTIAL = ".inference-fleet.partial"
MARKER_KEYS = {"inputs", "packages", "python", "real_python"}
OWN_FOLDER = NodePaths("").lib + "/"  # nobody else puts anything there
SCHEMA = 1

REQUIREMENT = re.compile(r"^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[^\]]*\])?\s*(.*)$")
PIN = re.compile(r"^==\s*([A-Za-z0-9.!+_-]+)$")
IMPORT = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$")


# Tests, and the single models of a collection of models: a fifth of the code of an engine, and seldom imported.
SELDOM = r"/(tests?|models/[^/]+)/"


@dataclass(frozen=True)
class Desired:
    """What an environment must be. The first block decides what it is, the second only where it comes from.

    create: False where the environment is somebody else's, which is only looked at.
    uv: path or name of a uv executable. None where the environment brings its own, as the toolkit's does: uv is one of
    its packages then, and pip installs that one.
    fallback_indexes: [{package: NAME==VERSION, index: URL}], asked only for a pin that no configured place has.
    environment: extra variables of every child process (proxies and the like).
    """

    path: str
    packages: list = field(default_factory=list)
    create: bool = True
    excludes: list = field(default_factory=list)
    overrides: list = field(default_factory=list)
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

    @property
    def own_uv(self):
        """The requirement of uv among the packages, None without one."""
        return next((one for one in self.packages if required_name(one) == "uv"), None)

    @property
    def places(self):
        """Where packages come from besides what pip is configured with."""
        return {"find_links": self.find_links, "index_url": self.index_url, "extra_index_urls": self.extra_index_urls}

    def inputs(self):
        """sha256 (hex) of what decides the environment. Indexes and proxies are not in it: a new mirror or a
        renewed token says where packages come from, not which."""
        decides = {
            "schema": SCHEMA,
            "requirements": sorted(self.requirements),
            "excludes": sorted(normalized(name) for name in self.excludes),
            "python": self.python,
            "installer": "uv" if self.uv else "pip",  # who brings uv
            "compile_bytecode": self.compile_bytecode,
            "verify_imports": sorted(self.verify_imports),
        }
        if self.overrides:  # without any the sum is as it would be without the key
            decides["overrides"] = sorted(self.overrides)
        return hashlib.sha256(canonical(decides)).hexdigest()


def from_parameters(parameters):
    """A Desired from a module's parameters, with null taken for nothing."""
    given = {name: value for name, value in parameters.items() if value is not None}
    given["environment"] = checked_variables(given.get("environment"))
    return Desired(**given)


def ensure(desired, check_mode=False):
    """Bring the environment to what is desired.

    Returns {changed, path, python, packages: {name: version} of the named ones, message, diff: {before, after}}.
    An environment that is up to date costs no process and no network. Raises FleetError.
    """
    check(desired)
    before = installed(desired.path)
    if not desired.create:
        check_present(desired, before)
        return _result(desired, False, "up to date", before, before)
    marker, reason = compare(desired, before)
    if reason is None:
        return _result(desired, False, "up to date", before, before)
    if check_mode:
        return _outcome(desired, marker, reason, before, True)
    try:
        with _alone(desired.path):
            before = installed(desired.path)
            marker, reason = compare(desired, before)
            if reason is None:  # another run has brought it meanwhile
                return _result(desired, False, "up to date", before, before)
            apply(desired, marker)
    except OSError as error:
        raise FleetError(
            "venv.cannot-make",
            "Cannot make the Python environment %s: %s.%s",
            (desired.path, error, uv.space_hint(desired.path, str(error))),
        ) from error
    return _outcome(desired, marker, reason, before, False)


@contextlib.contextmanager
def _alone(path):
    """Hold the environment's folder, made where there is none, while no other run is at work in it."""
    with contextlib.ExitStack() as held:
        while True:
            made = make_directory(path)
            with contextlib.suppress(FileNotFoundError):  # the run that made it failed, and took it away
                handle = held.enter_context(files.folder_lock(path))
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    break
            held.close()
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                if made:
                    os.rmdir(path)
            raise


def _outcome(desired, marker, reason, before, check_mode):
    fresh = marker is None
    message = "%s %s in %s and what they need: %s" % (
        "would install" if check_mode else "installed",
        "%d package%s" % (len(desired.requirements), "" if len(desired.requirements) == 1 else "s"),
        desired.path,
        reason,
    )
    if check_mode:
        return _result(desired, True, message, before, _predicted(desired, {} if fresh else before))
    return _result(desired, True, message, before, installed(desired.path))


def check(desired):
    """Raise FleetError where the parameters make no sense."""
    if not os.path.isabs(desired.path) or os.path.normpath(desired.path) == "/":
        raise FleetError(
            "venv.path-not-absolute",
            "path is %r; it must be an absolute path of a directory of its own.",
            (desired.path,),
        )
    if desired.create and not desired.requirements:
        raise FleetError("venv.packages-empty", "packages is empty; name at least one package, as NAME==VERSION.")
    for key, requirements in (("packages", desired.packages), ("overrides", desired.overrides)):
        for requirement in requirements:
            match = REQUIREMENT.match(requirement)
            if not match or (match.group(2) and match.group(2)[0] not in "=<>!~@;("):
                raise FleetError(
                    "venv.requirement-invalid",
                    "%s: %r is no requirement; write NAME==VERSION or NAME @ URL.",
                    (key, requirement),
                )
    for name in desired.excludes:
        match = REQUIREMENT.match(name)
        if not match or match.group(2):
            raise FleetError("venv.exclude-invalid", "excludes: %r is no package name; write the name alone.", (name,))
    for fallback in desired.fallback_indexes:
        match = REQUIREMENT.match(fallback["package"])
        if not match or not PIN.match(match.group(2)):
            raise FleetError(
                "venv.fallback-not-pinned",
                "fallback_indexes: %r is not pinned; write NAME==VERSION, so that only that build comes from there.",
                (fallback["package"],),
            )
    for name in desired.verify_imports:
        if not IMPORT.match(name):
            raise FleetError(
                "venv.module-name-invalid",
                "verify_imports: %r is no module name; write it as in an import statement.",
                (name,),
            )
    if desired.create and desired.uv is None and desired.own_uv is None:
        raise FleetError("venv.uv-needed", "uv installs the packages: set uv to its path, or name uv in packages.")


def check_present(desired, present):
    """Raise FleetError unless somebody else's environment is there with the named packages. Starts no process."""
    if not os.access(desired.interpreter, os.X_OK):
        raise FleetError(
            "venv.missing",
            "There is no Python environment %s, and it is not to be created (create is false). Put it there, "
            "correct its path, or let it be created.",
            (desired.path,),
        )
    for requirement in desired.requirements:
        name, pin = required_name(requirement), PIN.match(REQUIREMENT.match(requirement).group(2))
        if name not in present or (pin and not same_version(pin.group(1), present[name])):
            raise FleetError(
                "venv.requirement-missing",
                "%s is needed in the Python environment %s, which has %s and is not to be changed (create is false).",
                (requirement, desired.path, "%s %s" % (name, present[name]) if name in present else "none"),
            )


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


def compare(desired, present):
    """(marker, reason): the marker of a complete environment of ours, else None; why it must change, None where not.

    present: {name: version} as `installed` gives it. Reads a few files, starts nothing. Raises FleetError where
    `desired.path` holds something that is not ours.
    """
    try:
        names = set(os.listdir(desired.path))
    except FileNotFoundError:
        return None, "there is none"
    except NotADirectoryError:
        in_the_way = desired.path
        while not os.path.lexists(in_the_way):
            in_the_way = os.path.dirname(in_the_way)
        raise FleetError(
            "venv.not-a-directory", "%s is not a directory; remove it or choose another path.", (in_the_way,)
        ) from None
    except OSError as error:
        raise FleetError("venv.unreadable", "Cannot read %s: %s.", (desired.path, error)) from error
    if PARTIAL in names:
        return None, "an earlier run left it incomplete"
    if not names:
        return None, "there is none"
    if MARKER not in names and OWN_FOLDER in desired.path:
        return None, "it has no marker file"
    if MARKER not in names:
        shown = ", ".join(sorted(names)[:5])
        raise FleetError(
            "venv.holds-other-files",
            "%s holds what this collection did not put there (%s); it is left as it is. "
            "Choose another path, or remove it.",
            (desired.path, shown),
        )
    marker = files.read_json(os.path.join(desired.path, MARKER))
    if not isinstance(marker, dict) or marker.get("schema") != SCHEMA or not set(marker) >= MARKER_KEYS:
        return None, "its marker file cannot be read"
    if not os.access(desired.interpreter, os.X_OK) or marker["real_python"] != os.path.realpath(desired.interpreter):
        return None, "its Python interpreter is gone or another one"
    for name, version in sorted(marker["packages"].items()):
        if present.get(name) != version:
            return marker, "%s %s is no longer in it" % (name, version)
    damage = damaged_file(desired.path, marker["packages"])
    if damage:  # uv itself may be what is damaged where it is in this environment
        return marker if desired.uv else None, damage[1]
    if marker["inputs"] != desired.inputs():
        return marker, "it was made from other settings"
    return marker, None


def apply(desired, marker):
    """Make or change the environment. marker: that of the complete environment that is there, or None."""
    environment = uv.child_environment(desired.environment, desired.ca_bundle)
    python = uv.find_python(desired.python, environment, desired.uv)
    program = uv.find_uv(desired.uv, environment) if desired.uv else None
    if marker is not None and not _same_interpreter(marker, python, desired, environment):
        marker = None
    fresh = marker is None
    files.write_atomic(os.path.join(desired.path, PARTIAL), "")
    try:
        if fresh:
            _clear(desired.path, keep=(PARTIAL,))
        else:
            os.unlink(os.path.join(desired.path, MARKER))
        if program is None:
            program = uv.bootstrap(desired.path, desired.own_uv, python, environment, **desired.places)
        elif fresh:
            _create(desired, python, program, environment)
        _install(desired, python, program, environment)
        for _each in desired.requirements:
            damage = damaged_file(desired.path, [required_name(one) for one in desired.requirements])
            if not damage:
                break
            _install(desired, python, program, environment, damage[0])
        if desired.compile_bytecode:
            _compile(desired, environment)
        found = _verify(desired, environment)
        probe = uv.probe_python(desired.interpreter, environment)
    except BaseException:
        # A changed environment stays, servers may run from it; its marker says that the next run starts over.
        if fresh:
            _clear(desired.path, keep=())
        raise
    files.write_atomic(
        os.path.join(desired.path, MARKER),
        json.dumps(
            {
                "schema": SCHEMA,
                "inputs": desired.inputs(),
                "packages": found,
                "python": probe,
                "real_python": os.path.realpath(desired.interpreter),
            },
            indent=2,
            sort_keys=True,
        )
        + "\n",
    )
    os.unlink(os.path.join(desired.path, PARTIAL))


def _create(desired, python, program, environment):
    try:
        uv.run([program, "venv", "--allow-existing", "--python", python, desired.path], environment)
    except uv.CommandFailed as error:
        raise uv.failure("Cannot create the Python environment", desired.path, error) from error


def _install(desired, python, program, environment, damaged=None):
    pip = uv.pip_configuration([python, os.path.join(os.path.dirname(program), "python")], environment)
    variables, flags = uv.places(pip, environment, **desired.places)
    configured = {**environment, **variables}
    base = [program, "pip", "install", "--python", desired.interpreter]
    for fallback in desired.fallback_indexes:
        _from_fallback_if_needed(desired, fallback, base, flags, configured)
    with tempfile.TemporaryDirectory() as folder:
        # --exact takes away what is no longer asked for, what is excluded by now among it.
        argv = [*base, "--exact", *flags]
        for option, lines in (("excludes", desired.excludes), ("overrides", desired.overrides)):
            if lines:
                listed = os.path.join(folder, option + ".txt")
                files.write_atomic(listed, "".join(line + "\n" for line in lines))
                argv += ["--" + option, listed]
        if damaged:  # uv's cache may share the damaged file: environments are hard links to it
            argv += ["--reinstall-package", damaged, "--no-cache"]
        try:
            uv.run(argv + desired.requirements, configured)
        except uv.CommandFailed as error:
            raise uv.failure(
                "uv could not install %s" % ", ".join(desired.requirements), desired.path, error
            ) from error


def _compile(desired, environment):
    """Write the bytecode of everything but SELDOM."""
    argv = [desired.interpreter, "-m", "compileall", "-qq", "-j", "0", "-x", SELDOM, os.path.join(desired.path, "lib")]
    with contextlib.suppress(uv.CommandFailed):  # packages hold templates that are no Python
        uv.run(argv, environment)


def _from_fallback_if_needed(desired, fallback, base, flags, configured):
    """Install one pin, without what it needs, from its fallback index where the configured places have it not."""
    pin = fallback["package"]
    try:
        uv.run(base + flags + ["--dry-run", "--no-deps", pin], configured)
        return
    except uv.CommandFailed as error:
        first = error
    only = {
        name: value
        for name, value in configured.items()
        if name not in ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_FIND_LINKS", "UV_OFFLINE")
    }
    only["UV_DEFAULT_INDEX"] = fallback["index"]
    try:
        uv.run([*base, "--no-deps", pin], only)
    except uv.CommandFailed as error:
        raise FleetError(
            "venv.package-not-found",
            "%s is neither where pip is configured to look nor at %s. Put its wheel into a directory that find_links "
            "names, or name an index that has it.\nThere:\n%s\nAt the fallback:\n%s%s",
            (
                pin,
                uv.without_credentials(fallback["index"]),
                uv.last_lines(first.output),
                uv.last_lines(error.output),
                uv.network_hint(error.output),
            ),
            details={"stderr": uv.without_credentials(error.output)},
        ) from error


def _verify(desired, environment):
    """{name: version} of the named packages after checking that each is there, and that each import works."""
    present = installed(desired.path)
    found = {}
    for requirement in desired.requirements:
        name = required_name(requirement)
        specifier = REQUIREMENT.match(requirement).group(2)
        pin = PIN.match(specifier)
        if name not in present:
            if ";" in specifier:
                continue  # its marker says that this node does not need it
            raise FleetError(
                "venv.package-not-installed",
                "%s was installed without an error, but is not in %s; the index may hold a damaged package.",
                (requirement, desired.path),
            )
        if pin and not same_version(pin.group(1), present[name]):
            raise FleetError(
                "venv.version-differs",
                "%s was asked for, but %s %s is in %s.",
                (requirement, name, present[name], desired.path),
            )
        found[name] = present[name]
    for module in desired.verify_imports:
        try:
            # -I: neither the working directory nor a user's own packages stand in for what is missing.
            uv.run([desired.interpreter, "-I", "-c", "import " + module], environment)
        except uv.CommandFailed as error:
            raise FleetError(
                "venv.import-failed",
                "%s is installed in %s, but `import %s` fails there: %s",
                (", ".join(desired.requirements), desired.path, module, uv.last_lines(error.output, 1)),
                details={"stderr": uv.without_credentials(error.output)},
            ) from error
    return found


def _same_interpreter(marker, python, desired, environment):
    if desired.python is None:
        return True
    return uv.probe_python(python, environment) == marker["python"]


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


def _predicted(desired, before):
    """{name: version or what is asked for}: what can be said without asking an index."""
    after = dict(before)
    for requirement in desired.requirements:
        pin = PIN.match(REQUIREMENT.match(requirement).group(2))
        name = required_name(requirement)
        if not (pin and name in after and same_version(pin.group(1), after[name])):
            after[name] = pin.group(1) if pin else REQUIREMENT.match(requirement).group(2)
    for name in desired.excludes:
        after.pop(normalized(name), None)
    return after


def _result(desired, changed, message, before, after):
    named = {required_name(requirement) for requirement in desired.requirements}
    return {
        "changed": changed,
        "message": message,
        "path": desired.path,
        "python": desired.interpreter,
        "packages": {name: version for name, version in sorted(after.items()) if name in named},
        "diff": {"before": _listing(before), "after": _listing(after)},
    }


def _listing(packages):
    # What only check mode foresees stands there as it was asked for: "uv>=0.13", or a bare name.
    return "".join(
        "%s%s%s\n" % (name, "==" if version[:1].isalnum() else "", version)
        for name, version in sorted(packages.items())
    )
