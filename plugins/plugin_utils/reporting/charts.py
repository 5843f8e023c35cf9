# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Charts as SVG that stands in a page: Vega-Lite specifications of templates/charts, drawn by vl-convert in an
environment of its own. Where there is none, there are no charts."""

from __future__ import annotations

import json
import os
import re
import subprocess
from xml.etree import ElementTree

from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.node.files import read_text
from ansible_collections.inference.fleet.plugins.plugin_utils.reporting.page_values import visible

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates", "charts")
SECONDS = 60
SVG = "http://www.w3.org/2000/svg"
# All that a drawn chart may hold; a page shows nothing else of it.
TAGS = {"svg", "g", "path", "text", "tspan", "rect", "line", "circle", "defs", "clipPath"}
ATTRIBUTES = re.compile(
    r"^(role|aria-[a-z]+|class|d|transform|viewBox|x|y|x1|x2|y1|y2|dx|dy|r|cx|cy|width|height|opacity"
    r"|(fill|stroke)(-[a-z]+)?|font-[a-z]+|text-anchor)$"
)
# Runs in the environment that has vl-convert: {name: specification} in, {name: SVG} out.
WORKER = """
import json, sys, vl_convert
specifications = json.load(sys.stdin)
json.dump({name: vl_convert.vegalite_to_svg(one) for name, one in specifications.items()}, sys.stdout)
"""


def specification(name, rows, label, titles=None):
    """A chart of templates/charts with its rows. label: what it shows, for who cannot see it; titles: {axis: title}."""
    rows = [{key: visible(value) for key, value in row.items()} for row in rows]
    chart = {**_file(name), "description": label, "data": {"values": rows}, "config": _file("config")}
    for axis, title in (titles or {}).items():
        chart["encoding"][axis]["title"] = title
    return chart


def _file(name):
    return json.loads(read_text(os.path.join(FOLDER, name + ".json")))


def draw(python, specifications):
    """({name: SVG}, problem): the charts, and why there are none, or None. Never an error.

    python: the interpreter of an environment with vl-convert-python; empty: there is none.
    """
    if not specifications:
        return {}, None
    if not python:
        return {}, "no environment with vl-convert-python"
    try:
        done = subprocess.run(
            [python, "-I", "-c", WORKER],
            input=json.dumps(specifications), capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            return {}, "%s: %s" % (
                python,
                (done.stderr.strip().splitlines() or ["exit %d" % done.returncode])[-1][:300],
            )
        drawn = json.loads(done.stdout)
        return {name: clean(drawn[name], name, one["description"]) for name, one in specifications.items()}, None
    except subprocess.TimeoutExpired:
        return {}, "%s: not drawn in %d s" % (python, SECONDS)
    except OSError as error:
        return {}, "%s: %s" % (python, error.strerror or error)
    except (ValueError, KeyError, TypeError, ElementTree.ParseError) as error:
        return {}, "%s: the charts cannot be read: %s" % (python, error)


def clean(text, name, label):
    """An SVG with what TAGS and ATTRIBUTES allow alone, as large as its place. ElementTree.ParseError."""
    root = ElementTree.fromstring(text)
    _clean(root, name)
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.attrib.update({"class": "chart", "role": "graphics-document", "aria-label": label})
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element, name):
    for child in list(element):
        if not isinstance(child.tag, str) or child.tag.removeprefix("{%s}" % SVG) not in TAGS:
            element.remove(child)
            continue
        _clean(child, name)
    for key, value in list(element.attrib.items()):
        if key in ("id", "clip-path"):  # ids of one page have to differ
            element.set(key, re.sub(r"(clip|gradient)(\d+)", r"%s-\1\2" % name, value))
        elif not ATTRIBUTES.match(key):
            del element.attrib[key]
