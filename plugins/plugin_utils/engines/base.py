# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface of engines for planning: building and parsing of command lines, checks, and memory."""

from __future__ import annotations

import contextlib
import json
import re

from ...module_utils.fleet_node.errors import FleetError
from ..base.checks import Mistakes, invalid, number, unknown_key
from ..base.words import show
from ..models import family_of
from . import options
from .options import SIZE, SUFFIXES, Version, check_limit, command_flags, size, text

SERVED = "served-model-name"
PARALLEL = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
            "tp-size": "tensor-parallel-size", "pp-size": "pipeline-parallel-size"}  # fmt: skip
WHOLE, SHARE = "int >0", "float >0..1"  # values that a flag accepts; see options.py


class Unreadable(ValueError):
    """Raised for an argument that the memory check cannot parse, although the engine may accept it."""


class Engine:
    """An engine. Each file of this folder defines a subclass and its object ENGINE.

    name: in recipes. label: for people. parallel: flags whose product is the number of devices of one server. port,
    bind: flags that must agree with the entry. repeat_lists: a list repeats the flag for each value (click), instead of
    one flag with several values (argparse). config_wins: whether a key of the configuration file takes precedence over
    the same flag of the command line. aliases: {short name of a flag: long name}, with hyphens. api_key: the
    environment variable that contains the API key which the engine requires, empty if it does not support API keys.
    limits: {flag: allowed values} of numbers (options.py). lengths: flags with the length of a sequence. variables: the
    same as limits, for environment variables. versions: pattern of an image or a package, whose first group is the
    version of the engine. forks: {platform: the same pattern for the vendor's build}. wraps: names of the engines that
    its workers can run; a recipe's `backend` selects one of them. knobs: names of sequences, length, share of memory
    and tensor parallelism in messages about memory. any_model_name: whether servers answer requests for a model of any
    name. metrics_path: of a server's metrics for Prometheus. unserved: families of models that it cannot serve. usual:
    see sizes(). flags: the options.Options of its command line. parsers: {flag: kind of parser}; parser_plugins: flags
    with which a plugin may define a parser of any name.
    """

    name = label = port = bind = api_key = versions = ""
    parallel = ("tensor-parallel-size", "pipeline-parallel-size")
    repeat_lists = config_wins = any_model_name = False
    metrics_path = "/metrics"
    aliases = PARALLEL
    limits = dict.fromkeys(("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"), WHOLE)
    lengths = wraps = ()
    unserved = ("embedding",)
    variables = forks = {}
    usual = parser_plugins = ()
    flags, parsers = None, {}
    knobs = ("max-num-seqs", "max-model-len", "gpu-memory-utilization", "tensor-parallel-size")

    def running(self, backend):
        """Return this engine combined with the engine `backend` (a name, or None) that it wraps. By default an engine
        wraps none, and the result is the engine itself."""
        return self

    def takes_one(self, service, tls):
        """Return whether its servers accept a single address of a service, and not a list.
        tls: whether the service has TLS."""
        return False

    def client_files(self, where, server, secrets, folders):
        """Return ({ENV: file} of secrets, {ENV: file} of variables) with which a server
        presents its certificates to services.

        server: planning.plan.Draft. secrets: {ENV: source} that the recipe specifies. folders: {service: the node's
        folder with ca.crt, tls.crt, tls.key} of services that sign them. Raises FleetError if a required certificate is
        not specified.
        """
        return {}, {}

    def needs(self, server, environment):
        """Return the services that a server requires at its start, in the form of supervise/order.py.

        server: planning.plan.Draft. environment: all its variables.
        """
        return []

    def operations(self, host, venv):
        """Return the operations with which the engine's role creates an environment, as [(operation, arguments)] of the
        modules that its tasks call. None if they are not known; the step then runs each time.

        host: planning.steps.Host. venv: of the recipe.
        """
        return None

    def takes(self, entry):
        """Return {"sequences": concurrent requests of a server, "context": tokens of a request},
        with None for an unset value."""
        found = []
        for name in self.knobs[:2]:
            try:
                number_of = read_number(entry["arguments"], self.canonical_flag(name))
            except Unreadable:
                number_of = None
            found.append(number_of if number_of and number_of > 0 else None)
        return dict(zip(("sequences", "context"), found))

    # -- the command line ----------------------------------------------------------------------------------------------

    def canonical_flag(self, flag):
        """Return the canonical name of a flag for all spellings:
        max_num_seqs is max-num-seqs, tp is tensor-parallel-size."""
        name = flag.replace("_", "-")
        return self.aliases.get(name, name)

    def flag_argv(self, flag, value):
        """Return the argv words of a flag. ``value``: see the recipe schema's arguments."""
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
        """Return further words of a server's command that let it finish its requests when it stops.
        They name a module."""
        return []

    def adapter_arguments(self, adapters):
        """Return {flag: value} that load LoRA adapters ({name: directory}), None if the engine loads none."""
        return None

    def lora_rank(self, arguments):
        """Return the largest rank of adapters that a server with these arguments loads, None for any."""
        return read_number(arguments, "max-lora-rank")

    def effective(self, command, arguments, config):
        """Return {canonical flag: value} of a server, from its command, its arguments and its configuration file.

        command: the words before its arguments. arguments: {flag: value} with values as in the recipe. config: its
        configuration file or None. A flag that its opposite switches off (no-enable-prefix-caching) is false.
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
        """Raises FleetError if the engine rejects the settings of a server, or if they contradict the plan.

        server: planning.plan.Draft.
        """
        written = self._check_twice(where, server.values)
        self._check_limits(where, server)
        self._check_plan(where, server, written)
        version = self.version(server.recipe)
        self.check_command(where, server, version)
        self.check_config(where, server, version)

    def _check_twice(self, where, values):
        """Return {canonical flag: as written}. Raises FleetError if two flags set the same option."""
        written, mistakes = {}, Mistakes()
        for flag, value in values.items():
            name = self.canonical_flag(flag)
            other = written.setdefault(name, flag)
            opposite = next((one for one in values if self.canonical_flag(one) == "no-" + name), None)
            if other != flag:
                mistakes.keep(conflict(where, "arguments." + other, "arguments." + flag))
            elif opposite is not None and value is not False and values[opposite] is not False:
                mistakes.keep(conflict(where, "arguments." + flag, "arguments." + opposite))
            with mistakes.noted():
                self.check_flag(where, name, flag, value)
        mistakes.raise_any()
        return written

    def check_flag(self, where, name, flag, value):
        """Raises FleetError if the engine does not accept the spelling of a flag. name: its canonical name."""

    def longer(self, names, environment):
        """Return whether the server's flags and variables allow sequences that are longer than the model supports."""
        return False

    def _check_limits(self, where, server):
        """Raises FleetError if a number is out of range."""
        given = [("arguments.%s" % flag, self.canonical_flag(flag), value) for flag, value in server.values.items()]
        given += [("config.content.%s" % key, self.canonical_flag(str(key)), value)
                  for key, value in server.content.items()]  # fmt: skip
        longer = self.longer({name for _key, name, _value in given}, server.environment)
        longest = None if longer or server.model is None else server.model.max_len
        given = [(key, self.limits.get(name), name, value) for key, name, value in given]
        given += [("environment." + name, spec, "", server.environment.get(name))
                  for name, spec in self.variables.items()]  # fmt: skip
        mistakes = Mistakes()
        for key, spec, name, value in given:
            if spec and value is not None and value is not False:
                place = "%s: %s" % (where, key)
                with mistakes.noted():
                    check_limit(place, value, spec)
                    if name in self.lengths and longest and (size(value) or 0) > longest:
                        raise invalid(place, value, "up to %d tokens, the longest context of the model" % longest)
        mistakes.raise_any()

    def _check_plan(self, where, server, written):
        """Raises FleetError if a flag contradicts the plan. written: {canonical flag: as written in arguments}."""
        places = {name: "arguments.%s" % flag for name, flag in written.items()}
        in_file = {self.canonical_flag(str(key)): "config.content.%s" % key for key in server.content}
        places = {**places, **in_file} if self.config_wins else {**in_file, **places}
        sizes, product = {}, 1
        for name in self.parallel:
            value = number(server.arguments.get(name))
            # a recipe's configuration file is shared by all its groups
            if value is not None and (server.devices or name in written):
                sizes[places.get(name, "command: --" + name)] = value
                product *= value
        if sizes and product != len(server.devices):
            raise FleetError(
                "plan.parallel-not-devices",
                where,
                " x ".join("%s %d" % item for item in sizes.items()),
                product,
                len(server.devices),
                server.context["group"],
            )
        for name, key, plan_key in (
            (SERVED, "model_id", "model.id"),
            (self.port, "port", "servers.%s.port" % server.context["group"]),
            (self.bind, "bind", "fleet_bind_address"),
        ):
            flag, expected = written.get(name), server.context[key]
            value = server.values.get(flag)
            names = value if isinstance(value, list) else [text(value)]
            if flag is not None and expected is not None and str(expected) not in names:
                raise not_as_planned(where, "arguments." + flag, value, plan_key, expected, key)

    def _check_split(self, where, server):
        """Raises FleetError if heads or layers cannot be split.
        Engines fail for this reason while they load the model."""
        model, values = server.model, server.arguments
        tensor, pipeline = (number(values.get(name, 1)) for name in Engine.parallel[:2])
        if model is None or not tensor or not pipeline or not server.devices:
            return
        if not self.attention_whole(values) and not _splits(model, tensor):
            fitting = ", ".join(str(one) for one in range(1, model.heads + 1) if _splits(model, one))
            allowed = "%s, for %d attention heads and %d KV heads" % (fitting, model.heads, model.kv_heads)
            raise invalid("%s: %s" % (where, PARALLEL["tp"]), tensor, allowed)
        if pipeline > model.layers:
            raise invalid("%s: %s" % (where, PARALLEL["pp"]), pipeline, "up to the model's %d layers" % model.layers)

    def attention_whole(self, values):
        """Return whether each device computes the attention of separate requests with all heads."""
        return False

    def check_host(self, entries, clustered, mistakes):
        """Note in `mistakes` which servers of a host do not fit together. entries: of the plan, without hashes.
        clustered: whether further servers of the deployment are on other hosts."""

    def check_cluster(self, entries, mistakes):
        """Note in `mistakes` settings that differ between the hosts of a deployment. entries: of all its hosts."""

    def version(self, recipe):
        """Return the packaging Version that a recipe runs, from its image or its packages, else from its container.

        None if none of them contains the version.
        """
        container, venv = recipe.get("container"), recipe.get("venv") or {}
        of_venv = [*(venv.get("packages") or ()), venv.get("version") or ""]
        words = [container.get("image") or ""] if container else of_venv
        fork = self.forks.get(recipe.get("platform"))
        patterns = [one for one in (self.versions, fork) if one]
        found = [match.group(match.lastindex) for one in patterns for word in words if (match := re.search(one, word))]
        for text_of in (*found, (container or {}).get("version") or ""):
            with contextlib.suppress(ValueError):
                return Version(text_of)
        return None

    def check_command(self, where, server, version):
        """Raises FleetError if this version of the engine's program (packaging's Version; None: unknown) rejects a
        flag, or would not serve as planned."""

    def program(self, command, models=()):
        """Return the index of the word that starts the engine's own server; -1 if an image's entrypoint starts it, and
        None for a script that wraps the engine. models: words with which such arguments for an entrypoint begin."""
        return None

    def sources(self, platform, version, values, program):
        """Return the recorded options to check a program against. values: {flag: value}. program: its word."""
        return [options.Program(self.flags, ("--",), version)]

    def given(self, server, program):
        """Return [(place, flag, value)] of a server's options: in its command after the program, in its arguments."""
        given = command_flags(server.command[program + 1 :])
        words = [("command: --" + flag, flag, value) for flag, value in given.items()]
        return [*words, *(("arguments." + flag, flag, value) for flag, value in server.values.items())]

    def spelling(self, name):
        """Return the only spelling of a flag that the engine's parser accepts, None if it accepts _ and - alike.
        name: with hyphens."""

    def _check_spelling(self, where, sources, given):
        mistakes = Mistakes()
        for place, flag, value in given:
            name = flag.replace("_", "-")
            spelling = self.spelling(name) if any(one.find(name) for one in sources) else None
            if spelling not in (None, flag):
                kind = place.partition(":")[0].partition(".")[0]
                mistakes.keep(unknown_key("%s: %s" % (where, kind), flag, value, [spelling]))
        mistakes.raise_any()

    def check_options(self, where, server):
        """Raises FleetError if the engine's parser rejects an option, according to the recorded options.

        This check runs after the platform's check, which has more details about the vendor's build of the engine.
        """
        self._check_split(where, server)
        command, recipe = server.command, server.recipe
        program = self.program(command, [server.context["model"]])
        if program is not None:
            sources = self.sources(recipe["platform"], self.version(recipe), server.arguments, command[program])
            given = self.given(server, program)
            self._check_spelling(where, sources, given)
            options.check(where, sources, given)
            self._check_parsers(where, server)

    def _check_parsers(self, where, server):
        """Raises FleetError for a parser of another family of models."""
        family, model = family_of(server.recipe), server.recipe["model"]
        values = {self.canonical_flag(flag): value for flag, value in server.values.items()}
        for flag, kind in self.parsers.items():
            fitting, given = family.fitting(kind, self.name, model), values.get(flag)
            if fitting is None or given in (None, False, *fitting) or set(values) & set(self.parser_plugins):
                continue
            allowed = "none, because %s have no such parser" % family.label
            if fitting:
                whose = (model.get("config") or {}).get("model_type") or family.label
                allowed = "%s, the parser of %s" % (" or ".join(fitting), whose)
            raise invalid("%s: arguments.%s" % (where, flag), given, allowed)

    def check_config(self, where, server, version):
        """Raises FleetError if the configuration file does not match this version, the flags or the devices. An engine
        that wraps another engine uses the other engine's check and notes()."""

    def notes(self, entry, version, hardware):
        """Return warnings for the plan: sentences about possible problems of a planned server, such as options that are
        not recorded; the node checks them with the engine's parser. entry: plan entry."""
        command = entry["command"]
        program = self.program(command, entry["weights"])
        if program is None:
            return []
        sources = self.sources(entry["platform"], version, entry["arguments"], command[program])
        return options.notes(sources, command[program + 1 :])

    # -- memory --------------------------------------------------------------------------------------------------------

    def memory(self, entry, hardware, model):
        """Return the values that determine the memory of a server, as keyword arguments of planning.capacity.Server.

        Raises Unreadable, with the reason, if an argument cannot be parsed.
        """
        raise Unreadable("the memory of %s is not known" % self.label)

    def sizes(self, values, model):
        """Return the part of memory()'s result that flags of every engine determine: those in `knobs` and the tokens of
        a step. `usual`: (default of sequences, of the share of memory, (flag for tokens of a step, its default))."""
        sequences, length, fraction, tensor = map(self.canonical_flag, self.knobs)
        most, share, (step, batched) = self.usual
        return {
            "tensor": read_degree(values, tensor),
            "pipeline": read_degree(values, Engine.parallel[1]),
            "fraction": read_number(values, fraction, share, float),
            "max_seqs": read_number(values, sequences, most),
            "max_seqs_given": sequences in values,
            "max_len": read_number(values, length, model.max_len),
            "batched": read_number(values, step, batched),
            "kv_bytes": cache_bytes_of(values.get("kv-cache-dtype")),
            "knobs": self.knobs,
        }


def content_of(entry):
    """Return the content of a plan entry's configuration file, {} if it has none."""
    return (entry["config"] or {}).get("content") or {}


def block_of(content, name):
    """Return a block of a configuration file, {} if it is missing."""
    return content[name] if isinstance(content.get(name), dict) else {}


def _splits(model, size):
    """Return whether the heads divide evenly over this number of devices. KV heads are split, or repeated evenly."""
    low, high = sorted((size, model.kv_heads))
    return size > 0 and model.heads % size == 0 and high % low == 0


def conflict(where, place, other):
    """Return the FleetError of an option that is set twice."""
    return FleetError("plan.flags-conflict", where, place, other)


def not_as_planned(where, place, value, plan_key, expected, placeholder):
    """Return the FleetError of an argument that contradicts the plan."""
    return FleetError("plan.argument-not-as-planned", where, place, show(value), plan_key, show(expected), placeholder)


def read_number(values, name, default=None, kind=int):
    """Return the number in a flag, the default if it is not set. Raises Unreadable if it is no number."""
    value = values.get(name)
    if value is None or value is False:
        return default
    match = SIZE.fullmatch(str(value).strip())
    if not match or (kind is int and not match.group(2) and "." in match.group(1)):
        raise Unreadable("%s is %s, which is no number" % (name, value))
    return kind(float(match.group(1)) * SUFFIXES[match.group(2)])


def read_degree(values, name):
    """Return a degree of parallelism, 1 if it is not set."""
    degree = read_number(values, name, 1)
    if degree < 1:
        raise Unreadable("%s is %d" % (name, degree))
    return degree


def read_mapping(values, name):
    """Return a flag's value as a mapping, {} if it is not set. The value may be JSON."""
    value = values.get(name) or {}
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise Unreadable("%s is %s, which is no mapping" % (name, values[name]))
    return value


def mapping_of(values, name):
    """read_mapping(), {} for what is no mapping, which check_options() reports."""
    with contextlib.suppress(Unreadable):
        return read_mapping(values, name)
    return {}


def cache_bytes_of(dtype):
    """Return the bytes of one element of the KV cache."""
    return 1 if str(dtype).startswith(("fp8", "nvfp4", "int8")) else 2
