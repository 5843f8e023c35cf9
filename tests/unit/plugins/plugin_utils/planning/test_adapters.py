# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""LoRA adapters: command lines, weights, refusals, verification, and their names at the endpoint."""

from __future__ import annotations

import json

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes, preflight
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import endpoint
from ansible_collections.inference.fleet.tests.hubs.repositories import Repository, safetensors
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import by_name, verdict_of
from ansible_collections.inference.fleet.tests.unit.plugins.modules.model_weights_hub.conftest import hub, node

__all__ = ["hub", "node"]
SQL = {"name": "sql", "repo": "us/sql", "revision": "v1", "path": "${models}/sql"}
BASE = "Qwen/Qwen3-32B"
PEFT = {"peft_type": "LORA", "r": 16, "base_model_name_or_path": BASE}


def planned(name, accelerator, adapters=(SQL,), arguments=None):
    change = {"model": {"adapters": list(adapters)}, "arguments": arguments or {}}
    found = plans.planned(name, accelerator, change)
    return found.entries, found.deployment


@pytest.mark.parametrize(
    ("name", "words", "arguments", "rank"),
    [
        ("qwen3-32b", ["--enable-lora", "--lora-modules", "sql=/var/lib/inference-fleet/models/sql"], {}, 16),
        ("qwen3-32b", ["--enable-lora"], {"max-lora-rank": 64}, 64),
        ("h200-sglang", ["--lora-paths", "sql=/var/lib/inference-fleet/models/sql"], {}, None),
    ],
)
def test_an_adapter_is_an_argument_and_its_weights_are_installed_like_a_model_s(name, words, arguments, rank):
    (entry, *_rest), deployment = planned(name, "h200", arguments=arguments)
    at = entry["command"].index(words[0])
    assert entry["command"][at : at + len(words)] == words
    assert entry["adapters"] == ["sql"] and entry["weights"][1:] == ["/var/lib/inference-fleet/models/sql"]
    assert "/var/lib/inference-fleet/models/sql" in {one["source"] for one in entry["container"]["mounts"]}
    assert "adapters" not in planned(name, "h200", ())[0][0]
    model, adapter = deployment["models"]
    assert (adapter["source"], adapter["repo"], adapter["revision"]) == ("huggingface", "us/sql", "v1")
    assert adapter["adapter"] == {"base": model["repo"], "max_rank": rank} and not model.get("adapter")


def test_an_adapter_without_a_repository_is_already_on_the_node():
    _entries, deployment = planned("qwen3-32b", "h200", [{"name": "sql", "path": "/srv/sql", "base": "us/tuned"}])
    adapter = deployment["models"][1]
    assert (adapter["source"], adapter["path"], adapter["adapter"]["base"]) == ("path", "/srv/sql", "us/tuned")


@pytest.mark.parametrize(
    ("name", "accelerator", "code", "more"),
    [
        ("qwen3-embedding-8b", "h200", "input.value-invalid", {}),
        ("h200-max-throughput", "h200", "input.value-invalid", {}),
        ("cpu-dynamo", "cpu", "input.value-invalid", {}),
        ("trn3-eagle3", "trainium3", "input.value-invalid", {}),
        ("qwen3-32b", "h200", "plan.flags-conflict", {"arguments": {"lora-modules": "x=/srv/x"}}),
        ("qwen3-32b", "h200", "plan.config-value-invalid", {"arguments": {"max-lora-rank": 24}}),
        ("qwen3-32b", "h200", "recipe.key-invalid", {"adapters": [SQL, SQL]}),
        ("qwen3-32b", "h200", "recipe.key-invalid", {"adapters": [{**SQL, "name": BASE}]}),
    ],
)
def test_what_a_plan_refuses(name, accelerator, code, more):
    assert plans.problem(planned, name, accelerator, **more).code == code


# -- weights -----------------------------------------------------------------------------------------------------------


def files(**changes):
    config = {**PEFT, **changes}
    return {"adapter_config.json": json.dumps(config).encode(),
            "adapter_model.safetensors": safetensors("base_model.q.lora_A.weight", 5000, 1).bytes()}  # fmt: skip


def test_an_adapter_comes_from_the_hub_pinned_and_checksummed(node):
    node.hub.add(Repository("us/sql", files()))
    given = {"repo": "us/sql", "destination": str(node.models / "sql"), "adapter": {"base": BASE, "max_rank": 16}}
    _check, applied = node.four_steps(**given)
    assert (applied["commit"], applied["rank"]) == (node.hub.repositories["us/sql"].head, 16)
    assert sorted(one.name for one in (node.models / "sql").iterdir() if one.name[0] != ".") == sorted(files())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"r": 32}, "32"),
        ({"rank_pattern": {"q_proj": 64}}, "64"),
        ({"base_model_name_or_path": "Qwen/Qwen3-8B"}, "Qwen/Qwen3-8B"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"use_dora": True}, "DoRA"),
    ],
)
def test_an_adapter_that_the_server_would_refuse_is_an_error_before_its_download(node, changes, word):
    node.hub.add(Repository("us/sql", files(**changes)))
    given = {"repo": "us/sql", "destination": str(node.models / "sql"), "adapter": {"base": BASE, "max_rank": 16}}
    node.refused("checkpoint.does-not-fit", word, **given)
    assert node.hub.sent("us/sql", "adapter_model.safetensors") == 0


def test_an_adapter_on_the_node_is_checked_before_servers_stop(tmp_path):
    for name, content in files(base_model_name_or_path="/home/us/qwen3-32b/").items():
        (tmp_path / name).write_bytes(content)
    model = {"source": "path", "path": str(tmp_path), "adapter": {"base": BASE, "max_rank": 16}}
    assert list(preflight._check_model(model)) == []
    assert "rank is 16" in next(preflight._check_model({**model, "adapter": {"base": BASE, "max_rank": 8}}))
    (tmp_path / "adapter_model.safetensors").unlink()
    assert "adapter_model.safetensors" in next(preflight._check_model(model))


# -- verification and endpoint -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "engine", "ok"),
    [(("m", "sql"), "vllm", True), (("m",), "vllm", False), (("m", "sql", "m:sql"), "sglang", True),
     (("m", "sql"), "sglang", False)],
)  # fmt: skip
def test_each_adapter_is_listed_and_answers(listed, engine, ok):
    with ScriptedEngine(listed=list(listed)) as running:
        entry = plan_entry(running.port, model_id="m", family="chat", adapters=["sql"], engine=engine)
        probe = by_name(verdict_of(running, asking.Options(timeout=60), [entry]))["adapters"]
    assert probe["ok"] is ok
    assert (probe["cause"] == causes.ADAPTER_MISSING) is ("sql" not in listed)


def test_the_endpoint_has_a_route_for_each_adapter():
    entries = [plan_entry(8000, model_id="m", adapters=["sql"], host="h"), plan_entry(8001, "server-1", model_id="m")]
    variables = {name: {"ansible_host": "10.0.0.1"} for name in ("h", "node-1")}
    for entry in entries:
        entry["bind"] = "0.0.0.0"
    deployment = {"model": {"repo": "us/m"}, "models": []}
    model, adapter = endpoint.backends([(entries, deployment)], variables)
    assert (adapter["model"], [(one["server"], one["track"]) for one in adapter["servers"]]) == (
        "sql", [("server-0", model["name"])],
    )  # fmt: skip
    for other in {"model_id": "sql"}, {"model_id": "n", "adapters": ["sql"]}:
        taken = plan_entry(8002, "server-2", bind="0.0.0.0", **other)
        assert plans.error(endpoint.backends, [([*entries, taken], deployment)], variables).code == "plan.taken-twice"
