# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the plan asks of an engine: how its command line is written and read, what it refuses, and its memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.base.checks import Mistakes, invalid, number
from ansible_collections.inference.fleet.plugins.plugin_utils.base.words import show

try:
    from packaging.version import InvalidVersion, Version
except ImportError:  # ansible-core brings it; ansible-test's import sanity does without it
    InvalidVersion = Version = None

FLAG = re.compile(r"--?[A-Za-z]")
SIZE = re.compile(r"(-?\d+(?:\.\d+)?)([kmgtKMGT]?)")
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
MAX_SIZE = 10**15
SERVED = "served-model-name"
PARALLEL = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
            "tp-size": "tensor-parallel-size", "pp-size": "pipeline-parallel-size"}  # fmt: skip


class Unreadable(ValueError):
    """An argument that the memory check cannot read; the engine may."""


@dataclasses.dataclass(frozen=True)
class Fork:
    """An engine as the vendor of a platform ships it.

    versions: pattern of an image's name or of venv.version, whose group is the release that it is built on. values:
    {flag: values that the vendor adds}.
    """

    versions: str
    values: dict = dataclasses.field(default_factory=dict)


class Engine:
    """An engine; a file of this folder defines one and its object ENGINE.

    name: in recipes. label: for people. parallel: flags whose product is the number of devices of one server. port,
    bind: flags that must agree with the entry. repeat_lists: a list becomes the flag given again (click) instead of one
    flag with several values (argparse). config_wins: whether a key of the configuration file overrules the same flag of
    the command line. aliases: {short name of a flag: its long one}, with hyphens. api_key: the variable of its
    environment that holds the API key it asks for, empty where it knows none. whole, sizes, shares, lengths: flags
    whose value is a whole number, a number of bytes or tokens (64M), a share, the length of a sequence. variables:
    {environment variable: "whole" or "share"}. versions: pattern of an image or a package, whose first group is the
    version of the engine. forks: {platform: Fork}.
    automatic: {flag: values with which the engine chooses itself}. wraps: names of the engines of which its servers can
    be workers; a recipe's `backend` says of which. knobs: names of sequences, length, share of memory and tensor
    parallelism in messages about its memory.
    """

    name = label = port = bind = api_key = versions = ""
    parallel = ("tensor-parallel-size", "pipeline-parallel-size")
    repeat_lists = config_wins = False
    aliases = PARALLEL
    whole = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
    sizes = shares = lengths = wraps = ()
    variables = automatic = forks = {}
    knobs = ("max-num-seqs", "max-model-len", "gpu-memory-utilization", "tensor-parallel-size")

    def running(self, backend):
        """The engine as it is with one that it wraps, by its name; None for none. Itself where it wraps none."""
        return self

    def takes_one(self, service, tls):
        """Whether its servers take one address of a service, and not a list. tls: whether the service has TLS."""
        return False

    def client_files(self, where, server, secrets, folders):
        """({ENV: file} of secrets, {ENV: file} of variables) by which a server shows its certificates to services.

        server: planning.plan.Draft. secrets: {ENV: source} that the recipe gives. folders: {service: the node's folder
        with ca.crt, tls.crt, tls.key} of services that sign them. FleetError where it needs one that nobody gives.
        """
        return {}, {}

    def needs(self, server, environment):
        """The services that a server cannot start without, as supervise/order.py has them.

        server: planning.entries.Draft. environment: all its variables.
        """
        return []

    def operations(self, host, venv):
        """What the role of the engine runs to make an environment: [(operation, arguments)], as its tasks call the
        modules; None where that is not known, and then the step runs each time.

        host: planning.steps.Host. venv: of the recipe.
        """
        return None

    def takes(self, entry):
        """{"sequences": requests that a server answers at once, "context": tokens of one}; None where it is not set."""
        found = []
        for name in self.knobs[:2]:
            try:
                number_of = read_number(entry["arguments"], (self.canonical_flag(name),))
            except Unreadable:
                number_of = None
            found.append(number_of if number_of and number_of > 0 else None)
        return dict(zip(("sequences", "context"), found))

    # -- the command line ----------------------------------------------------------------------------------------------

    def canonical_flag(self, flag):
        """The one name for all spellings of a flag: max_num_seqs is max-num-seqs, tp is tensor-parallel-size."""
        name = flag.replace("_", "-")
        return self.aliases.get(name, name)

    def flag_argv(self, flag, value):
        """The argv words of one flag. ``value``: see the recipe schema's arguments."""
        word = ("-" if len(flag) == 1 else "--") + flag
        if value is None or value is False:
            return []
        if value is True:
            return [word]
        if isinstance(value, list):
            items = [text(item) for item in value]
            if self.repeat_lists:
                return [part for item in items for part in (word, item)]
            return [word, *items]
        return [word, text(value)]

    def drain_arguments(self, server):
        """Further words of a server's command, by which it can be asked to finish its requests; they name a module."""
        return []

    def effective(self, command, arguments, config):
        """{canonical flag: value} that a server runs with, whatever way it is given.

        command: the words before its arguments. arguments: {flag: value} with values as the recipe has them. config:
        its configuration file or None. A flag that is switched off by its opposite (no-enable-prefix-caching) is false.
        """
        given = {**command_flags(command), **{flag: value for flag, value in arguments.items() if value is not False}}
        content = (config or {}).get("content") or {}
        found = {}
        for layer in (given, content) if self.config_wins else (content, given):
            for flag, value in layer.items():
                name = self.canonical_flag(str(flag))
                negated = value is True and name.startswith("no-")
                found[name[3:] if negated else name] = False if negated else value
        return {name: value for name, value in sorted(found.items()) if value is not None}

    # -- checks --------------------------------------------------------------------------------------------------------

    def check(self, where, server):
        """FleetError where a server is given what the engine refuses, or what says something else than the plan.

        server: planning.plan.Draft.
        """
        written = self._check_twice(where, server.values)
        self._check_sizes(where, server)
        self._check_plan(where, server, written)
        version = self.version(server.recipe)
        self.check_command(where, server, version)
        self.check_config(where, server, version)

    def _check_twice(self, where, values):
        """FleetError where two flags say the same thing, or the opposite. Returns {canonical flag: as written}."""
        written, mistakes = {}, Mistakes()
        for flag in values:
            other = written.setdefault(self.canonical_flag(flag), flag)
            if other != flag:
                mistakes.add(
                    "recipe.flag-twice",
                    "%s: arguments.%s and arguments.%s are one flag to the engine, which would take the last one. Keep "
                    "one of them; null takes away the recipe's.",
                    (where, other, flag),
                )
        for name, flag in written.items():
            value, opposite = values[flag], written.get("no-" + name)
            if opposite is not None and value is not False and values[opposite] is not False:
                mistakes.add(
                    "recipe.flag-and-its-opposite",
                    "%s: arguments.%s and arguments.%s say the opposite of each other, and the engine would take the "
                    "last one. Remove one of them; null takes away the recipe's.",
                    (where, flag, opposite),
                )
            with mistakes.noted():
                self.check_flag(where, name, flag, value)
        mistakes.raise_any()
        return written

    def check_flag(self, where, name, flag, value):
        """FleetError where the engine does not take a flag as it is written. name: its canonical one."""

    def longer(self, names, environment):
        """Whether a sequence may be longer than the model reads, by the flags and variables that a server has."""
        return False

    def _check_sizes(self, where, server):
        given = [("arguments.%s" % flag, self.canonical_flag(flag), value) for flag, value in server.values.items()]
        given += [("config.content.%s" % key, self.canonical_flag(str(key)), value)
                  for key, value in server.content.items()]  # fmt: skip
        longer = self.longer({name for _key, name, _value in given}, server.environment)
        longest = None if longer or server.model is None else server.model.max_len
        mistakes = Mistakes()
        for key, name, value in given:
            if value is not None and value is not False:
                with mistakes.noted():
                    self._check_size("%s: %s" % (where, key), name, value, longest)
        for name, kind in self.variables.items():
            if name in server.environment:
                with mistakes.noted():
                    check = _check_whole if kind == "whole" else _check_share
                    check("%s: environment.%s" % (where, name), server.environment[name])
        mistakes.raise_any()

    def _check_size(self, key, name, value, longest):
        if name in self.whole:
            _check_whole(key, value)
        elif name in self.shares:
            _check_share(key, value)
        elif name in self.sizes and str(value) not in self.automatic.get(name, ()):
            size = _check_bytes(key, value)
            if name in self.lengths and longest is not None and size > longest:
                raise invalid(key, value, "up to %d tokens, the longest context of the model" % longest)

    def _check_plan(self, where, server, written):
        """Flags that say what the plan says must say the same. written: {canonical flag: as written in arguments}."""
        places = {name: "arguments.%s" % flag for name, flag in written.items()}
        in_file = {self.canonical_flag(str(key)): "config.content.%s" % key for key in server.content}
        places = {**places, **in_file} if self.config_wins else {**in_file, **places}
        sizes = {}
        for name in self.parallel:
            value = number(server.arguments.get(name))
            # a recipe's configuration file is that of all its groups
            if value is not None and (server.devices or name in written):
                sizes[places.get(name, "command: --" + name)] = value
        served = written.get(SERVED)
        model_id = server.context["model_id"]
        if served is not None and model_id not in (
            server.values[served] if isinstance(server.values[served], list) else [text(server.values[served])]
        ):
            raise FleetError(
                "plan.model-id-not-served",
                "%s: arguments.%s is %s, but model.id is %s; the id must be among the names. Write ${model_id} there "
                "and set model.id.",
                (where, served, show(server.values[served]), show(model_id)),
            )
        product = 1
        for size in sizes.values():
            product *= size
        if sizes and product != len(server.devices):
            raise FleetError(
                "plan.parallel-not-devices",
                "%s: %s needs %d devices, but the server is given %d. Set servers.%s.devices to %d or change the %s.",
                (
                    where, " x ".join("%s %d" % item for item in sizes.items()), product, len(server.devices),
                    server.context["group"], product,
                    "argument" if all(place.startswith("arguments") for place in sizes) else "number",
                ),
            )  # fmt: skip
        for name, key in ((self.port, "port"), (self.bind, "bind")):
            flag, expected = written.get(name), server.context[key]
            plan_key = "servers.%s.port" % server.context["group"] if key == "port" else "fleet_bind_address"
            if flag is not None and expected is not None and str(server.values[flag]) != str(expected):
                raise FleetError(
                    "plan.argument-not-as-planned",
                    "%s: arguments.%s is %s, but %s is %s; write ${%s} there and set %s.",
                    (where, flag, show(server.values[flag]), plan_key, expected, key, plan_key),
                )

    def _check_split(self, where, server):
        """Heads and layers must be divisible among the devices; engines find out when they load the model."""
        model, values = server.model, server.arguments
        tensor, pipeline = (number(values.get(name, 1)) for name in Engine.parallel[:2])
        if model is None or not tensor or not pipeline or not server.devices:
            return
        whole = self.attention_whole(values)
        if not whole and not _splits(model, tensor):
            fitting = [str(size) for size in range(1, model.heads + 1) if _splits(model, size)]
            raise FleetError(
                "plan.heads-not-divided",
                "%s: %s is %d, but the model has %d attention heads and %d KV heads, which cannot be split over as "
                "many devices; allowed: %s. Set servers.%s.devices to such a number.",
                (where, PARALLEL["tp"], tensor, model.heads, model.kv_heads, ", ".join(fitting),
                 server.context["group"]),
            )  # fmt: skip
        if pipeline > model.layers:
            raise FleetError(
                "plan.layers-not-divided",
                "%s: %s is %d, but the model has %d layers; allowed: up to as many. Lower it.",
                (where, PARALLEL["pp"], pipeline, model.layers),
            )

    def attention_whole(self, values):
        """Whether each device computes the attention of its own requests with all heads."""
        return False

    def check_host(self, entries, clustered, mistakes):
        """Note in `mistakes` what does not fit together of a host's servers. entries: of the plan, without hashes.
        clustered: whether further servers of the deployment are on other hosts."""

    def version(self, recipe):
        """The packaging Version that a recipe runs: by its image or its packages, else as its container says.

        None where nothing says it.
        """
        container, venv = recipe.get("container"), recipe.get("venv") or {}
        of_venv = [*(venv.get("packages") or ()), venv.get("version") or ""]
        words = [container.get("image") or ""] if container else of_venv
        fork = self.forks.get(recipe.get("platform"))
        patterns = [one for one in (self.versions, fork and fork.versions) if one]
        found = [match.group(match.lastindex) for one in patterns for word in words if (match := re.search(one, word))]
        for text_of in (*found, (container or {}).get("version") or ""):
            with contextlib.suppress(InvalidVersion):
                return Version(text_of)
        return None

    def check_command(self, where, server, version):
        """FleetError where the engine's own program does not take a flag in this version (packaging's; None: unknown),
        or would serve something else than is planned."""

    def check_options(self, where, server):
        """FleetError where the engine's own parser refuses what it is given, as far as that is on record.

        It comes after the platform's check, which knows better what its vendor's engine takes.
        """
        self._check_split(where, server)

    def check_config(self, where, server, version):
        """FleetError where the engine's file is none of this version, or at odds with the flags or the devices. An
        engine around another one has this of it, and notes()."""

    def notes(self, entry, version, hardware):
        """Sentences on what may go wrong with a planned server; warnings of the plan. entry: plan entry."""
        return []

    # -- memory --------------------------------------------------------------------------------------------------------

    def memory(self, entry, hardware, model):
        """What decides about the memory of a server, as keyword arguments of planning.capacity.Server.

        Unreadable says what is in the way.
        """
        raise Unreadable("the memory of %s is not known" % self.label)


def _splits(model, size):
    """Whether each of so many devices gets as many heads; KV heads are split, or repeated on as many devices each."""
    low, high = sorted((size, model.kv_heads))
    return size > 0 and model.heads % size == 0 and high % low == 0


def command_flags(words):
    """{flag: its text, or True for a bare one} of the flags in a recipe's command."""
    values, index = {}, 0
    while index < len(words):
        word = words[index]
        index += 1
        if not FLAG.match(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            value = True
            if index < len(words) and not FLAG.match(words[index]):
                value = words[index]
                index += 1
        values[name] = value
    return values


def text(value):
    """A value as an engine reads it from argv or environment: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def read_number(values, names, default=None, kind=int):
    """The number that one of these flags has, the default without one. Unreadable where it is none."""
    for name in names:
        value = values.get(name)
        if value is None or value is False:
            continue
        match = SIZE.fullmatch(str(value).strip())
        if not match or (kind is int and not match.group(2) and "." in match.group(1)):
            raise Unreadable("%s is %s, which is no number" % (name, value))
        return kind(float(match.group(1)) * SUFFIXES[match.group(2)])
    return default


def read_degree(values, name):
    """A degree of parallelism, 1 where none is given."""
    degree = read_number(values, (name,), 1)
    if degree < 1:
        raise Unreadable("%s is %d" % (name, degree))
    return degree


def read_mapping(values, name):
    """A flag's value as a mapping, {} where it is not set; it may be written as JSON."""
    value = values.get(name) or {}
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Unreadable("%s is %s, which is no mapping" % (name, values[name]))
    return value


def cache_bytes_of(dtype):
    """Bytes of one element of the KV cache."""
    return 1 if str(dtype).startswith(("fp8", "nvfp4", "int8")) else 2


def _check_whole(key, value):
    found = number(value)
    if found is None or not 0 < found <= MAX_SIZE:
        raise invalid(key, value, "a whole number above 0")


def _check_share(key, value):
    found = number(value, whole=False)
    if found is None or not 0 < found <= 1:
        raise invalid(key, value, "a number above 0, at most 1")


def _check_bytes(key, value):
    match = SIZE.fullmatch(str(value).strip()) if not isinstance(value, (bool, float, list, dict)) else None
    size = float(match.group(1)) * SUFFIXES[match.group(2)] if match else 0
    if not 0 < size <= MAX_SIZE or size != int(size):
        raise invalid(key, value, "a whole number above 0, also with k, K, m, M, g or G behind it")
    return int(size)
