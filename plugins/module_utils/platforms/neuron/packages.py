# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Driver, runtime, collectives and tools of AWS Neuron from the vendor's repositories, on Debian, Ubuntu and kin with
apt, on Amazon Linux 2023 with dnf.

What a machine image brings stays where it fits: a driver is not changed under an environment that was built for it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import ssl
import urllib.error
import urllib.parse
import urllib.request

from ansible_collections.inference.fleet.plugins.module_utils.errors import FleetError
from ansible_collections.inference.fleet.plugins.module_utils.node.directories import make_directory
from ansible_collections.inference.fleet.plugins.module_utils.node.files import read_text, write_atomic
from ansible_collections.inference.fleet.plugins.module_utils.node.shared_libraries import (
    distribution_family,
    run_manager,
)
from ansible_collections.inference.fleet.plugins.module_utils.platforms import detector
from ansible_collections.inference.fleet.plugins.module_utils.platforms.host import System
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.detect import mismatch
from ansible_collections.inference.fleet.plugins.module_utils.platforms.neuron.preflight import missing_cores

DRIVER, RUNTIME = "aws-neuronx-dkms", "aws-neuronx-runtime-lib"
VERSION = re.compile(r"^[0-9]+(\.[0-9]+)*$")
NAME = re.compile(r"^[a-z0-9][a-z0-9+.-]*$")
SUITE = re.compile(r"^[a-z][a-z0-9-]*$")
KEY_HEAD = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
CALL_S = 60
INSTALL_S = 1800  # the driver is built for each kernel on the node
KEY_S = 30
APT = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300")


def numbers(version):
    """(2, 29, 40, 0) of "2.29.40.0-f954cd7a5" or "1:2.29.40.0": what counts of a package's version."""
    upstream = version.partition(":")[2] or version
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[-~+]", upstream)[0]))


def at_least(version, least):
    """Whether a package's version is the given one or newer, by the numbers that both have."""
    return numbers(version)[: len(numbers(least))] >= numbers(least)


def is_version(version, wanted):
    """Whether a package's version is the wanted one; 2.30 means any 2.30.x."""
    return numbers(version)[: len(numbers(wanted))] == numbers(wanted)


class Wanted:
    """What a node shall have.

    hardware: fleet_hardware, needs: the recipe's, servers: plan entries, for a node that gets its driver here.
    reboot_follows: whoever called reboots the node where the result says must_reboot.
    packages: {name: {version: to install, least: oldest that stays or None}}; apt: {url, suite or None}, dnf: {url};
    key: {url, file or None}: where the repository's key comes from. kernel_headers: install them with the driver, which
    is built for the running kernel. environment: proxies for what is fetched; ca_bundle: file with the certificates to
    trust, or None.
    """

    def __init__(self, packages, apt, dnf, key, kernel_headers=True, environment=None, ca_bundle=None, hardware=None,
                 needs=None, servers=(), reboot_follows=False):  # fmt: skip
        self.packages = packages
        self.apt = apt
        self.dnf = dnf
        self.key = key
        self.kernel_headers = kernel_headers
        self.hardware = hardware or {}
        self.needs = needs or {}
        self.servers = servers
        self.reboot_follows = reboot_follows
        self.environment = environment or {}
        self.ca_bundle = ca_bundle

    def check(self):
        """Raise FleetError for values that cannot be meant."""
        check_packages(self.packages)
        for where, url in (("apt.url", self.apt.get("url")), ("dnf.url", self.dnf.get("url")),
                           ("key.url", self.key.get("url"))):  # fmt: skip
            parts = urllib.parse.urlsplit(url or "")
            if parts.scheme not in ("http", "https", "file") or not (parts.netloc or parts.path) or " " in url:
                raise FleetError(
                    "neuron.repository-url-invalid", "%s is %r; allowed: an http, https or file URL.", (where, url)
                )
        if self.apt.get("suite") and not SUITE.match(self.apt["suite"]):
            raise FleetError(
                "neuron.suite-invalid",
                "apt.suite is %r; allowed: a distribution's code name, such as noble.",
                (self.apt["suite"],),
            )


def check_packages(packages):
    """Raise FleetError unless it is {name: {version, least}}."""
    for name, package in packages.items():
        if not NAME.match(name):
            raise FleetError("neuron.package-name-invalid", "packages: %r is no name of a package.", (name,))
        if not isinstance(package, dict) or set(package) - {"version", "least"}:
            raise FleetError(
                "neuron.package-not-a-mapping",
                "packages.%s is %r; allowed: a mapping of version and least.",
                (name, package),
            )
        for field in ("version", "least"):
            value = package.get(field)
            if not ((value is None and field == "least") or VERSION.match(str(value))):
                raise FleetError(
                    "neuron.package-version-invalid",
                    "packages.%s.%s is %r; allowed: numbers with dots, such as 2.30.2.0.",
                    (name, field, value),
                )
        if package.get("least") and not at_least(package["version"], package["least"]):
            raise FleetError(
                "neuron.package-version-too-old",
                "packages.%s: version %s is older than least %s.",
                (name, package["version"], package["least"]),
            )


def decide(packages, installed):
    """{name: version to install} of what is missing or older than its `least`. Pure.

    installed: {name: version}. Without a `least` only the wanted version fits.
    """
    due = {}
    for name, package in packages.items():
        version = installed.get(name)
        least = package.get("least")
        fits = version is not None and (at_least(version, least) if least else is_version(version, package["version"]))
        if not fits:
            due[name] = package["version"]
    return due


def _for_recipe(packages, needs):
    """The same, where a driver that the recipe cannot run on does not stay."""
    package, least = packages.get(DRIVER) or {}, needs.get("driver")
    if least and package.get("least") and not at_least(package["least"], least):
        return {**packages, DRIVER: {**package, "least": least}}
    return packages


def planned(packages, needs, installed):
    """({name: version to install}, {name: version afterwards}). Pure.

    installed: {name: version}. FleetError where driver and runtime would not fit each other or the recipe then.
    """
    due = decide(_for_recipe(packages, needs), installed)
    future = {**installed, **due}
    least = needs.get("driver")
    if least and DRIVER in future and not at_least(future[DRIVER], least):
        raise FleetError(
            "neuron.driver-too-old-for-recipe",
            "The recipe needs driver %s or later (needs.driver), neuron_packages installs %s. Nothing was changed: set "
            "neuron_packages to a newer release.",
            (least, future[DRIVER]),
            details={"packages": installed},
        )
    problem = mismatch(future.get(DRIVER), future.get(RUNTIME))
    if problem:
        raise FleetError(
            "neuron.packages-do-not-fit",
            "%s Nothing was changed: set neuron_packages to the versions of one release, or take a machine image whose "
            "versions fit.",
            (problem,),
            details={"packages": installed},
        )
    return due, future


def ensure(wanted, check_mode=False, sysroot=""):
    """Install what is missing, and nothing else; see that driver and runtime fit before and after.

    Returns {changed, message, packages: {name: version}, installed: [name], loaded_driver: version or None, reboot:
    bool (another driver is loaded than is installed), must_reboot: bool (and the loaded one is of no use), diff:
    {before, after}}. Raises FleetError; then nothing was installed unless the message says so.
    """
    wanted.check()
    manager = _manager(sysroot, wanted)
    installed = manager.installed(list(wanted.packages))
    due, future = planned(wanted.packages, wanted.needs, installed)
    loaded = read_text(sysroot + "/sys/module/neuron/version")
    loaded = loaded.strip() if loaded else None
    result = {
        "changed": bool(due),
        "message": "as wanted",
        "packages": installed,
        "installed": sorted(due),
        "loaded_driver": loaded,
        "reboot": False,
        "must_reboot": False,
        "diff": {"before": _lines(wanted, installed), "after": _lines(wanted, future)},
    }
    if not due:
        _look_at_loaded(wanted, result)
        return result
    words = ", ".join("%s %s%s" % (name, due[name], " (has %s)" % installed[name] if name in installed else "")
                      for name in sorted(due))  # fmt: skip
    if check_mode:
        result["message"] = "would install " + words
        return result
    if os.geteuid() != 0:
        raise FleetError(
            "neuron.install-needs-root", "Missing: %s. Installing them needs root; run the play with become.", (words,)
        )
    manager.install(due)
    result["packages"] = manager.installed(list(wanted.packages))
    missing = decide(wanted.packages, result["packages"])
    if missing:
        raise FleetError(
            "neuron.package-still-missing",
            "Installed, and yet there is no %s on the node; the package manager says: %s.",
            (
                ", ".join("%s %s" % item for item in sorted(missing.items())),
                ", ".join("%s %s" % item for item in sorted(result["packages"].items())) or "none",
            ),
        )
    if DRIVER in due:
        _load_driver(loaded)
        if loaded is None:
            _check_devices(wanted, sysroot)
    result["message"] = "installed " + words
    _look_at_loaded(wanted, result)
    return result


def _lines(wanted, versions):
    return "".join("%s %s\n" % (name, versions.get(name, "missing")) for name in wanted.packages)


def _look_at_loaded(wanted, result):
    """Fill in reboot and must_reboot. FleetError where the loaded driver is of no use and no reboot follows."""
    loaded, installed = result["loaded_driver"], result["packages"].get(DRIVER)
    unfit = loaded and _unfit(wanted, loaded, result["packages"].get(RUNTIME))
    result["reboot"] = bool(loaded and installed and numbers(loaded) != numbers(installed))
    result["must_reboot"] = bool(result["reboot"] and unfit)
    if not unfit or (result["reboot"] and wanted.reboot_follows):
        return
    details = {key: value for key, value in result.items() if key != "message"}
    if not result["reboot"]:
        raise FleetError(
            "neuron.driver-unfit",
            "The kernel has the Neuron driver %s loaded: %s. Update it.",
            (loaded, unfit),
            details=details,
        )
    raise FleetError(
        "neuron.reboot-needed",
        "The kernel has the Neuron driver %s loaded, %s is installed: %s. Reboot the node, then run again; or set "
        "neuron_reboot to true, and the run reboots it.",
        (loaded, installed, unfit),
        details=details,
    )


def _unfit(wanted, loaded, runtime):
    """Why servers cannot run on the loaded driver, None where they can."""
    package = wanted.packages.get(DRIVER)
    if package and decide({DRIVER: package}, {DRIVER: loaded}):
        least = package.get("least")
        return "%s is the oldest that may stay" % least if least else "only %s fits" % package["version"]
    if wanted.needs.get("driver") and not at_least(loaded, wanted.needs["driver"]):
        return "the recipe needs %s or later (needs.driver)" % wanted.needs["driver"]
    return "it does not fit the runtime %s" % runtime if mismatch(loaded, runtime) else None


def _load_driver(loaded):
    """Load a driver that was installed where there was none; an older one stays until the next boot."""
    program = shutil.which("modprobe", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if loaded is not None or program is None:
        return
    status, output = run_manager([program, "neuron"], {}, CALL_S)
    if status:
        raise FleetError(
            "neuron.driver-does-not-load",
            "The Neuron driver was installed, but the kernel does not load it: %s. See dkms status and dmesg; the "
            "driver is built for each kernel and needs its headers.",
            (output or "exit status %d" % status,),
        )


def _check_devices(wanted, sysroot):
    """The devices that a new driver shows against what is declared: preflight could not see them."""
    chosen, system = detector("neuron"), System(sysroot)
    try:
        found = chosen.detect(system)
        problems = chosen.shortfalls(found, wanted.hardware, wanted.needs) or list(missing_cores(wanted.servers, found))
    except FleetError as error:
        problems = [error.message]
    if problems:
        raise FleetError(
            "neuron.devices-not-as-declared",
            "The Neuron driver was installed, and the devices are not as declared: %s",
            (" ".join(problems),),
        )


def fetch_key(wanted):
    """The repository's public key as text: from its file, else from its URL. FleetError otherwise."""
    path, url = wanted.key.get("file"), wanted.key["url"]
    if path:
        text = read_text(path)
        if text is None:
            raise FleetError(
                "neuron.key-file-missing", "key.file %s is not on this node. Put the repository's key there.", (path,)
            )
        return _checked(text, path)
    handlers = [urllib.request.ProxyHandler(_proxies(url, wanted.environment))]
    if wanted.ca_bundle:
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=wanted.ca_bundle)))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=KEY_S) as answer:
            text = answer.read(1 << 20).decode("ascii", "replace")
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise FleetError(
            "neuron.key-not-fetched",
            "The key of the Neuron repository cannot be fetched from %s: %s. Nothing was changed. Without a way there "
            "set neuron_repositories to a mirror, or put the key on the node and name it in key.file.",
            (url, getattr(error, "reason", error)),
        ) from error
    return _checked(text, url)


def _proxies(url, environment):
    """{scheme: proxy} for the URL's host, from `environment` over this process's own."""
    variables = {key.lower(): value for key, value in {**os.environ, **environment}.items() if value}
    found = {key[:-6]: value for key, value in variables.items() if key.endswith("_proxy")}
    host = urllib.parse.urlsplit(url).hostname or ""
    if urllib.request.proxy_bypass_environment(host, {"no": found.pop("no", "")}):
        return {}
    return found


def _checked(text, where):
    if KEY_HEAD not in text:
        raise FleetError(
            "neuron.key-not-armored", "%s holds no armored public key (%s). Nothing was changed.", (where, KEY_HEAD)
        )
    return text


class Apt:
    """Debian's, Ubuntu's and kin."""

    KEYRING = "/etc/apt/keyrings/aws-neuron.asc"
    SOURCE = "/etc/apt/sources.list.d/aws-neuron.list"

    def __init__(self, wanted, suite, sysroot=""):
        self.wanted = wanted
        self.suite = suite
        self.sysroot = sysroot

    def installed(self, names):
        """{name: version} of those that are installed whole."""
        status, output = run_manager(
            ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n", *names],
            {},
            CALL_S,
            2 * len(names),
        )
        if status not in (0, 1):  # 1: some name is not known
            raise FleetError("neuron.dpkg-failed", "dpkg-query failed: %s", (output,))
        words = (line.split() for line in output.splitlines())
        return {line[1]: line[2] for line in words if len(line) == 3 and line[0] == "installed"}

    def install(self, due):
        """Add the repository and install {name: version}."""
        key = fetch_key(self.wanted)
        line = "deb [signed-by=%s] %s %s main\n" % (self.KEYRING, self.wanted.apt["url"].rstrip("/"), self.suite)
        for path, text in ((self.KEYRING, key), (self.SOURCE, line)):
            make_directory(os.path.dirname(self.sysroot + path))
            if read_text(self.sysroot + path) != text:
                write_atomic(self.sysroot + path, text)
        environment = dict(self.wanted.environment)
        options = ["-o", "Acquire::https::CAInfo=" + self.wanted.ca_bundle] if self.wanted.ca_bundle else []
        only = ["-o", "Dir::Etc::sourcelist=" + self.SOURCE, "-o", "Dir::Etc::sourceparts=-",
                "-o", "APT::Get::List-Cleanup=0"]  # fmt: skip
        self._call([*APT, *options, *only, "-o", "APT::Update::Error-Mode=any", "update"], environment)
        names = ["%s=%s*" % item for item in sorted(due.items())]
        if DRIVER in due and self.wanted.kernel_headers:
            names.insert(0, "linux-headers-" + os.uname().release)
        install = [*APT, *options, "install", "--no-install-recommends", "--allow-downgrades", *names]
        status, output = run_manager(install, environment, INSTALL_S)
        if status:
            self._call([*APT, *options, "update"], environment)  # a fresh image has no lists of its distribution
            status, output = run_manager(install, environment, INSTALL_S)
        if status:
            raise FleetError(
                "neuron.install-failed",
                "Installing %s failed: '%s' ended with %d: %s",
                (", ".join(names), " ".join(install), status, output),
            )

    def _call(self, argv, environment):
        status, output = run_manager(argv, environment, INSTALL_S)
        if status:
            raise FleetError("neuron.command-failed", "'%s' ended with %d: %s", (" ".join(argv), status, output))


class Dnf:
    """Amazon Linux 2023's."""

    KEYRING = "/etc/pki/rpm-gpg/RPM-GPG-KEY-aws-neuron"
    SOURCE = "/etc/yum.repos.d/aws-neuron.repo"

    def __init__(self, wanted, sysroot=""):
        self.wanted = wanted
        self.sysroot = sysroot

    def installed(self, names):
        """{name: version} of those that are installed."""
        status, output = run_manager(
            ["rpm", "-q", "--qf", "installed %{NAME} %{VERSION}-%{RELEASE}\n", *names], {}, CALL_S, 2 * len(names)
        )
        words = [line.split() for line in output.splitlines()]
        found = {line[1]: line[2] for line in words if len(line) == 3 and line[0] == "installed"}
        if status and (len(found) == len(names) or status > len(names)):  # as many as are not installed
            raise FleetError("neuron.rpm-failed", "rpm failed: %s", (output,))
        return found

    def install(self, due):
        """Add the repository and install {name: version}."""
        key = fetch_key(self.wanted)
        text = (
            "[aws-neuron]\nname=AWS Neuron\nbaseurl=%s\nenabled=1\ngpgcheck=1\ngpgkey=file://%s\nmetadata_expire=0\n"
            % (self.wanted.dnf["url"].rstrip("/"), self.KEYRING)
        )
        for path, content in ((self.KEYRING, key), (self.SOURCE, text)):
            make_directory(os.path.dirname(self.sysroot + path))
            if read_text(self.sysroot + path) != content:
                write_atomic(self.sysroot + path, content)
        names = ["%s-%s*" % item for item in sorted(due.items())]
        if DRIVER in due and self.wanted.kernel_headers:
            # by what it provides: the package is called kernel-devel, kernel6.12-devel, …
            names.insert(0, "kernel-devel-uname-r = " + os.uname().release)
        argv = ["dnf", "-y", "install", *names]
        if self.wanted.ca_bundle:
            argv.insert(2, "--setopt=sslcacert=" + self.wanted.ca_bundle)
        status, output = run_manager(argv, self.wanted.environment, INSTALL_S)
        if status:
            raise FleetError(
                "neuron.install-failed",
                "Installing %s failed: %s ended with %d: %s",
                (", ".join(names), shlex.join(argv), status, output),
            )


def _manager(sysroot, wanted):
    """Apt or Dnf of this node; FleetError for a distribution that the vendor has no packages for."""
    family, distribution = distribution_family(sysroot)
    release = read_text(sysroot + "/etc/os-release") or ""
    if family == "debian":
        found = re.search(r"^VERSION_CODENAME=[\"']?([a-z0-9-]+)", release, re.MULTILINE)
        suite = wanted.apt.get("suite") or (found and found.group(1))
        if not suite:
            raise FleetError(
                "neuron.suite-unknown",
                "/etc/os-release of %s has no VERSION_CODENAME; set neuron_repositories.apt.suite.",
                (distribution,),
            )
        return Apt(wanted, suite, sysroot)
    if re.search(r"^ID=[\"']?amzn", release, re.MULTILINE):
        return Dnf(wanted, sysroot)
    raise FleetError(
        "neuron.distribution-unsupported",
        "There are no Neuron packages for %s; allowed: Ubuntu and Debian (apt), Amazon Linux 2023 (dnf). Take a node "
        "with one of those, best the vendor's Deep Learning AMI.",
        (distribution,),
    )
