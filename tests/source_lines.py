# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of a Python file as programs see them."""

from __future__ import annotations

import ast
import io
import tokenize

DOCUMENTATION = ("DOCUMENTATION", "EXAMPLES", "RETURN")


def python(text, comments=False):
    """{number: what a line has of names, strings and numbers}; comments and docstrings where asked for.

    The documentation of a module is never in it.
    """
    left_out = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if (
            not comments
            and isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and body
            and ast.get_docstring(node) is not None
        ):
            left_out.add(body[0].value.lineno)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in DOCUMENTATION:
            left_out.add(node.value.lineno)
    lines = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        documented = token.type == tokenize.STRING and token.start[0] in left_out
        if (comments or token.type != tokenize.COMMENT) and not documented:
            for number, line in enumerate(token.string.splitlines(), token.start[0]):
                lines[number] = lines.get(number, "") + " " + line
    return lines


def documentation(text, name="DOCUMENTATION"):
    """{number: line} of a module's documentation, or of another of DOCUMENTATION; {} where it has none."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return dict(enumerate(text.splitlines()[node.lineno - 1 : node.end_lineno], node.lineno))
    return {}
