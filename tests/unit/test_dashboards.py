# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The dashboards of the role monitoring, as Ansible renders them: Grafana's schema, the grid, no panel without data;
and the address of Prometheus.

Molecule's scenario `monitoring` requires data for each query of engines, services and nodes.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

ROLE = pathlib.Path(__file__).resolve().parents[2] / "roles" / "monitoring"
KNOWN = yaml.safe_load((pathlib.Path(__file__).parent / "fixtures" / "accelerator-metrics.yml").read_text())
RULES = yaml.safe_load((ROLE / "files" / "rules.yml").read_text())["groups"]
VENDORS = re.compile(r"\b(?:DCGM_|neuron|hardware_|execution_|npu_)\w+")
COMMON, BOARDS = {"host"}, {"fleet", "server", "node"}
# fleets: (engines, jobs that have targets besides engines and nodes, platform with an exporter)
SMALL, TRTLLM = (("vllm",), (), None), (("trtllm",), (), "nvidia")
WHOLE = (("vllm", "dynamo"), ("endpoint", "etcd", "services", "accelerators"), "nvidia")
FLEETS = {"one server": SMALL, "trtllm": TRTLLM, "dynamo and all services": WHOLE,
          "neuron": (("vllm",), ("accelerators",), "neuron"), "ascend": (("vllm",), (), "ascend")}  # fmt: skip


def templated(text, **more):
    """A template of the role, with its variables and more."""
    variables = {}
    for path in ("defaults/main.yml", "vars/main.yml", "vars/dashboards.yml"):
        variables.update(DataLoader().load_from_file(str(ROLE / path), trusted_as_template=True))
    return Templar(loader=DataLoader(), variables={**variables, **more}).template(trust_as_template(text))


@functools.cache
def rendered(engines, jobs, platform):
    """{name: dashboard} of a fleet, by the role's template and variables."""
    targets = {job: [{}] if job in jobs else [] for job in ("endpoint", "etcd", "services", "accelerators")}
    targets.update(nodes=[{}], engines=[{"labels": {"engine": engine}} for engine in engines])
    text = (ROLE / "templates" / "dashboards.json.j2").read_text(encoding="utf-8")
    found = templated(text, monitoring_targets=targets, monitoring_platforms=[platform],
                      monitoring_accelerator_ports={platform: 9400} if platform else {})  # fmt: skip
    return json.loads(found)


@pytest.fixture(params=FLEETS.values(), ids=FLEETS)
def boards(request):
    return rendered(*request.param)


def lost(given, kept, path=""):
    """Paths of what is in the first value and not, or another, in the second."""
    if isinstance(given, dict):
        pairs = [(name, value, kept.get(name) if isinstance(kept, dict) else None) for name, value in given.items()]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = [(index, *both) for index, both in enumerate(zip(given, kept))]
    else:
        return [] if given == kept else [path]
    return [one for name, value, other in pairs for one in lost(value, other, "%s/%s" % (path, name))]


def through_grafana(board):
    """What Grafana's own model of a dashboard keeps of it. Its classes ignore names that they do not know."""
    register_default_plugins()
    return json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))


def test_grafana_knows_every_field(boards):
    for name, board in boards.items():
        assert lost(board, through_grafana(board)) == [], name


def test_panels_do_not_overlap_and_have_queries(boards):
    for name, board in boards.items():
        taken = [(column, row) for place in (panel["gridPos"] for panel in board["panels"])
                 for column in range(place["x"], place["x"] + place["w"])
                 for row in range(place["y"], place["y"] + place["h"])]  # fmt: skip
        assert len(taken) == len(set(taken)) and max(column for column, _row in taken) < 24, name
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        assert all(panel["targets"] for panel in board["panels"])
        selections = {one["name"] for one in board["templating"]["list"]}
        assert selections == set(re.findall(r"\$(\w+)", " ".join(queries(board)))), name
    assert len({board["uid"] for board in boards.values()}) == len(boards)


def queries(board):
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


@pytest.mark.parametrize(("fleet", "shown", "without"), [
    (SMALL, set(), {"haproxy_", "etcd_", "probe_"}),
    (TRTLLM, {"nvidia"}, {"haproxy_", "etcd_", "probe_", "requests_", "output_tokens", "process_start"}),
    (WHOLE, {"nvidia"}, set()),
])  # fmt: skip
def test_no_panel_is_without_data(fleet, shown, without):
    found = rendered(*fleet)
    assert set(found) == BOARDS | shown
    asked = " ".join(query for board in found.values() for query in queries(board))
    words = {"haproxy_", "etcd_", "probe_", "requests_", "output_tokens", "process_start"}
    assert {word for word in words if word not in asked} == without


@pytest.mark.parametrize("platform", KNOWN)
def test_exporters_have_these_metrics_and_labels(platform):
    board = yaml.safe_load((ROLE / "vars" / "dashboards.yml").read_text())["monitoring_dashboards"][platform]
    asked = [query for panel in board["panels"] for query in panel["queries"]]
    assert asked and all(len(VENDORS.findall(query["expr"])) == 1 for query in asked)
    assert {VENDORS.search(query["expr"]).group() for query in asked} <= set(KNOWN[platform]["metrics"])
    assert {label for query in asked for label in query["legend"]} <= {*KNOWN[platform]["labels"], *COMMON}


def test_alerts_are_about_metrics_that_exporters_have():
    found = {name for group in RULES for rule in group["rules"] for name in VENDORS.findall(rule["expr"])}
    assert found and found <= {name for one in KNOWN.values() for name in one["metrics"]}


@pytest.mark.parametrize(("address", "host", "asked"), [
    ("0.0.0.0", "0.0.0.0", "127.0.0.1"), ("mon-1", "mon-1", "mon-1"), ("::", "[::]", "[::1]"),
    ("fd00::5", "[fd00::5]", "[fd00::5]"),
])  # fmt: skip
def test_the_address_in_the_unit_and_in_grafanas_data_source(address, host, asked):
    unit = templated("{{ monitoring_units.prometheus }}", monitoring_address=address)
    assert "--web.listen-address=%s:9090 " % host in unit
    source = templated((ROLE / "templates" / "datasource.yml.j2").read_text(), monitoring_address=address)
    assert yaml.safe_load(source)["datasources"][0]["url"] == "http://%s:9090" % asked
