# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes docs/using/errors.md: every error code with its meaning and remedy, from the source.

    .venv/bin/python tools/errors_page.py      # writes docs/using/errors.md

An error is a call of FleetError, of a class that derives from it, or of Mistakes.add, with a literal code and a literal
template. Values are shown by the names of their expressions. Several calls may have the same code.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
PLUGINS = CLONE / "plugins"
PAGE = CLONE / "docs" / "using" / "errors.md"
CODE = re.compile(r"^[a-z][a-z0-9]*(-[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*$")
ESCAPED = re.compile(r"([*|<\[])")
IN_CODE = re.compile(r"`[^`\n]*`")
ADJACENT = re.compile(r"(?<!\\)\*(?=\*)")
PLACE = re.compile(r"%(?:\((\w+)\))?[-0 +#]*\d*(?:\.\d+)?([srdfgx%])")
CONVERTED = ("str", "repr", "int", "show")  # functions, not values: map(str, numbers)
# Methods and attributes whose names do not describe their value.
METHODS = ("capitalize", "decode", "format", "lower", "replace", "rstrip", "split", "splitlines", "strip", "upper")
# Names in the source and their replacements on the page.
READABLE = {
    "bad": "value", "do": "verb", "errmsg": "reason", "errcode": "code", "faultString": "reason", "getuid": "user",
    "here": "place", "inner": "key", "meant": "name", "misfit": "value", "one": "item", "other": "other item",
    "ours": "path", "own": "value", "pw name": "user", "said": "message", "stderr": "message", "strerror": "reason",
    "text": "message", "texts": "messages", "there": "items", "unfit": "value", "what": "item", "where": "place",
    "words": "message", "wrong": "problem",
}  # fmt: skip
# The remedy is the first sentence, or part of a sentence, that begins with one of these words.
VERBS = (
    "accept|add|allowed|ask|bring|change|check|choose|compare|copy|correct|declare|delete|deploy|drop|edit|"
    "encrypt|end|escape|export|fetch|find out|fix|for the newer weights|free|give|import|install|it must be|"
    "keep|know|leave|let|list|look|lower|make|mend|mount|move|name|paths without blanks are|plan again|put|"
    "quote|raise|reboot|remove|rename|repair|replace|restart|run|save|say which|see|serve|set|shorten|show|"
    "split|start|stop|take|tell|try|turn|type|unmask|update|upgrade|use|wait|write"
)
REMEDY = re.compile(
    r"(?<=[^\s][.;:,?)\]*`\u2019]) (?=(?:either |first |then |best |or |and |so |please )?(?:%s)\b)" % VERBS, re.I
)
HEAD = """# Error codes

<!-- Written by tools/errors_page.py from the source. Do not edit. -->

A failed task returns the `code` (`area.problem`) and message of its error. With several errors, `code` is `several` and
`errors` lists them. Codes are stable; messages may change. *Italics* are values. Headings of areas link to their pages.
"""
# The areas, each with the page that explains it.
AREAS = {
    **dict.fromkeys((
        "address", "arguments", "clean", "cpu", "devices", "encodings", "engine", "entry", "environment", "host-key",
        "input", "inventory", "jobs", "launch", "libraries", "node", "packages", "plan", "platform", "preflight",
        "readiness", "restart", "secrets", "servers", "services", "standin", "supervisord", "systemd", "token", "venv",
        "watchdog",
    ), ""),
    **dict.fromkeys(("amd", "ascend", "nvidia", "containers", "measure", "weights"), "{area}.md"),
    **dict.fromkeys(("etcd", "nats", "service", "tls"), "dynamo.md"),
    **dict.fromkeys(("artifact", "neuron"), "trainium.md"),
    **dict.fromkeys(("checkpoint", "hub", "sha256sums"), "weights.md"),
    **dict.fromkeys(("override", "recipe"), "recipes.md"),
    "doctor": "doctor.md", "endpoint": "endpoint.md",
    "api-key": "api-keys.md", "evaluate": "measure.md", "images": "containers.md", "probes": "verification.md",
    "tune": "measure.md",
}  # fmt: skip

# The remedies of templates that contain their remedy as a value.
IN_VALUES = {
    "doctor.device-faulty": "The message contains the remedy",
    "inventory.one-machine-twice": "Give each host its own address, or remove all but one of them",
    "inventory.secret-missing": "Set the variables that the message lists, for example in a vault",
    "node.os-error": "The message contains the remedy",
    "recipe.key-invalid": "Correct the key that the message names",
    "weights.job-failed": "The message contains the remedy",
}


class Problem(Exception):
    """The reasons why the page cannot be written, one line each."""


class Source:
    """A module: its tree, its module-level strings, and the sources of its imported names."""

    def __init__(self, path):
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.constants, self.imported = {}, {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.constants[node.targets[0].id] = node.value
            elif isinstance(node, ast.ImportFrom) and (node.level or node.module.startswith("ansible_collections.")):
                inside = node.module.split(".") if node.module else []
                source = (self.path.parents[node.level - 1] if node.level else PLUGINS.parent).joinpath(
                    *inside[0 if node.level else 3 :]
                )
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = (source, alias.name)


class Reader:
    def __init__(self, folder=PLUGINS):
        self.sources = {path: Source(path) for path in sorted(folder.rglob("*.py"))}
        self.kinds = self._derived()
        self.assigned = {}

    def _derived(self):
        """Return FleetError and the classes that derive from it."""
        found = {"FleetError"}
        classes = [n for s in self.sources.values() for n in ast.walk(s.tree) if isinstance(n, ast.ClassDef)]
        while True:
            more = {one.name for one in classes if any(isinstance(b, ast.Name) and b.id in found for b in one.bases)}
            if more <= found:
                return found
            found |= more

    def constant(self, source, name):
        """Return the expression of a module-level name, and its module; (None, None) if there is none."""
        if name in source.constants:
            return source.constants[name], source
        path, original = source.imported.get(name, (None, None))
        if path is None:
            return None, None
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file in self.sources:
                return self.constant(self.sources[file], original)
        return None, None

    def text(self, source, node):
        """Return a string expression with placeholders in italics."""
        if isinstance(node, ast.Constant):
            return ESCAPED.sub(r"\\\1", str(node.value)).replace("\n", " ")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.text(source, node.left) + self.text(source, node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self.filled(source, self.text(source, node.left), node.right)
        if isinstance(node, ast.IfExp):
            one, other = self.text(source, node.body), self.text(source, node.orelse)
            return one if not other else "%s / %s" % (one, other) if one else other
        if isinstance(node, ast.Name):
            local = self.assigned.get(node.id)
            if local is not None:
                return self.text(source, local)
            value, at = self.constant(source, node.id)
            if value is not None and isinstance(value, (ast.Constant, ast.BinOp)):
                return self.text(at, value)
            if value is not None and isinstance(value, (ast.Tuple, ast.List)):
                return ", ".join(self.text(at, one) for one in value.elts)
        name = self.name(node)
        name = name.lower() if name.isupper() else name
        return "*%s*" % (READABLE.get(name, name) or "…")

    def filled(self, source, template, values):
        """Return the template with the name of each value in its place."""
        named = {}
        if isinstance(values, ast.Dict):
            named = {key.value: value for key, value in zip(values.keys, values.values)}
        rest = list(values.elts) if isinstance(values, ast.Tuple) else [values]
        loose = any(isinstance(one, ast.Starred) for one in rest)

        def place(match):
            if match.group(2) == "%":
                return "%"
            if match.group(1):
                return self.text(source, named[match.group(1)])
            return self.value(source, rest.pop(0)) if rest and not loose else "*…*"

        return PLACE.sub(place, template)

    def value(self, source, node):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "join"
            and node.args
        ):
            return self.text(source, node.args[0])
        return self.text(source, node)

    def name(self, node):
        """Return the name of the value of an expression: its last name."""
        if isinstance(node, ast.Name):
            return node.id.strip("_").replace("_", " ")
        if isinstance(node, ast.Attribute):
            return node.attr.strip("_").replace("_", " ")
        if isinstance(node, ast.Subscript):
            index = node.slice
            if isinstance(index, ast.Constant) and isinstance(index.value, str):
                return index.value.replace("_", " ")
            return self.name(node.value)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop") and node.args:
                return self.name(node.args[0]) or (
                    str(node.args[0].value).replace("_", " ") if isinstance(node.args[0], ast.Constant) else ""
                )
            if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
                return self.name(node.func.value)
            inner = [self.name(one) for one in node.args if not (isinstance(one, ast.Name) and one.id in CONVERTED)]
            return next((one for one in inner if one), "") or self.name(node.func)
        if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
            return self.name(node.generators[0].iter)
        if isinstance(node, ast.Starred):
            return self.name(node.value)
        if isinstance(node, ast.BoolOp):
            return next((self.name(one) for one in node.values if self.name(one)), "")
        if isinstance(node, ast.BinOp):
            return self.name(node.left) or self.name(node.right)
        if isinstance(node, ast.IfExp):
            return self.name(node.body) or self.name(node.orelse)
        return ""

    def errors(self):
        """Return {code: [message]}. Raises Problem for errors that cannot be listed."""
        found, problems = {}, []
        for source in self.sources.values():
            for function, call in sorted(self.calls(source.tree), key=lambda one: one[1].lineno):
                self.assigned = strings_of(function)
                line = "%s:%d" % (source.path.name, call.lineno)
                code = call.args[0] if call.args else None
                message = self.text(source, call.args[1]) if len(call.args) > 1 else ""
                if len(call.args) > 2:
                    message = self.filled(source, message, call.args[2])
                else:
                    message = message.replace("%%", "%")
                if isinstance(code, ast.Constant) and isinstance(code.value, str):
                    codes = {code.value: message}
                else:
                    codes = self.raised_again(code)
                if codes is None:
                    problems.append("%s: the code is no literal: %s" % (line, ast.unparse(call)[:100]))
                    continue
                for one, text in codes.items():
                    if not CODE.match(one):
                        problems.append("%s: %s is not area.what-is-wrong" % (line, one))
                    elif one.partition(".")[0] not in AREAS:
                        problems.append("%s: the area of %s is not in AREAS of tools/errors_page.py" % (line, one))
                    elif text not in found.setdefault(one, []):
                        found[one].append(text)
        if problems:
            raise Problem("\n".join(problems))
        return found

    def calls(self, tree):
        """Return (function, call) of all errors, except those in errors.py,
        which only raises errors of others again."""
        for function in ast.walk(tree):
            if not isinstance(function, (ast.FunctionDef, ast.Module)):
                continue
            for node in own_nodes(function):
                if not isinstance(node, ast.Call):
                    continue
                if isinstance(node.func, ast.Name) and node.func.id in self.kinds:
                    yield function, node
                elif isinstance(node.func, ast.Attribute) and node.func.attr == "add" and len(node.args) > 1:
                    code = node.args[0]
                    if isinstance(code, ast.Constant) and isinstance(code.value, str) and "." in code.value:
                        yield function, node

    def raised_again(self, code):
        """Return {} for the code of another error, `one.code` or `code`;
        the default if the code is read from a record."""
        if isinstance(code, ast.Call) and isinstance(code.func, ast.Attribute) and code.func.attr == "get":
            return {code.args[1].value: "*message*"}
        if isinstance(code, ast.Attribute) and code.attr == "code":
            return {}
        return {} if isinstance(code, ast.Name) and code.id == "code" else None


def own_nodes(function):
    """Yield the nodes of a function, or of a module, without those of nested functions."""
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef):
            waiting.extend(ast.iter_child_nodes(node))


def strings_of(function):
    """Return {name: expression} of the variables of a function that are assigned once, with a string."""
    found = {}
    for node in own_nodes(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1 and is_string(values[0])}


def is_string(node):
    if isinstance(node, ast.BinOp):
        return is_string(node.left)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) > 12


def halves(message):
    """Return (meaning, remedy) of a message; the remedy may be empty."""
    match = REMEDY.search(message)
    if match is None:
        return message, ""
    remedy = message[match.start() :].strip()
    return message[: match.start()].rstrip(" ,;"), remedy[:1].upper() + remedy[1:]


def render(errors):
    """Return the page for {code: [message]}: a heading per code, and its messages with their remedies."""
    lines, area = [HEAD], ""
    for code in sorted(errors):
        if code.partition(".")[0] != area:
            area = code.partition(".")[0]
            page = AREAS[area].format(area=area)
            lines.append("## %s\n" % ("[%s](%s)" % (area, page) if page else area))
        messages = [" ".join(message.split()) for message in sorted(errors[code])]
        if code in IN_VALUES:
            messages[-1] += " " + IN_VALUES[code] + "."
        bullet = "- " if len(messages) > 1 else ""
        lines += ["### %s\n" % code, *(bullet + message for message in messages), ""]
    return IN_CODE.sub(lambda span: span.group().replace("*", ""), ADJACENT.sub("* ", "\n".join(lines))).rstrip() + "\n"


def main():
    try:
        PAGE.write_text(render(Reader().errors()), encoding="utf-8")
    except Problem as problem:
        sys.exit(str(problem))


if __name__ == "__main__":
    main()
