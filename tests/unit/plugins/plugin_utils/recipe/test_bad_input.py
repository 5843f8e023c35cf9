# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever people write: a plan, or a message with the key as it was written, its value and what to do."""

from __future__ import annotations

import re
import time

import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.errors import FleetError
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import fleet
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.variables import (
    CHECKS,
    MATCHES,
    of_roles,
    shared,
    table,
)
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import schema as recipe_schema
from ansible_collections.inference.fleet.tests.unit.engines import plans
from ansible_collections.inference.fleet.tests.unit.plugins.plugin_utils.recipe import bad_inputs
from hypothesis import example, given
from hypothesis import strategies as st

# A message ends with what to do, or with what is allowed in its place.
REMEDY = re.compile(
    r"allowed|did you mean|needed here|\b(Use|Set|Remove|Write|Keep|Put|Give|Save|Correct|Lower|Move|Change|declare"
    r"|copy|write|give|set|keep|remove)\b"
)


def variables(**changes):
    return plans.Lazy({**plans.LOCAL, "fleet_root": "/srv/fleet", **changes})


def planned(sources=(), **changes):
    return fleet.plan_fleet(["node1"], lambda host: variables(**changes), sources, deploys=True)


def refusal(sources=(), **changes):
    """The message that a plan is refused with, within a second or two."""
    begin = time.process_time()
    message = plans.error(planned, sources, **changes).message
    assert time.process_time() - begin < 10, "a refusal must not cost what the input asks for"
    return message


def check(message, key):
    assert key in message
    assert "Traceback" not in message
    assert len(message) < 4000
    for line in message.splitlines():
        assert line.startswith("node1: ")
        assert line.endswith((".", "?")), line
        assert REMEDY.search(line), line
        assert all(one.isprintable() for one in line), line


def named(rows):
    return [pytest.param(*row, id="%d-%s" % (index, row[1].strip()[:40])) for index, row in enumerate(rows)]


def write(folder, content):
    (folder / "recipes").mkdir(exist_ok=True)
    path = folder / "recipes" / "mine.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return {"sources": [str(folder / "hosts.yml")], "fleet_recipe": "mine"}


BAD_VALUES = [(code, *row) for code, table in bad_inputs.VALUES.items() for row in bad_inputs.rows(table)]


@pytest.mark.parametrize(("code", "name", "value"), BAD_VALUES)
def test_a_value_of_a_variable(code, name, value):
    """Its error, and a message that has the name, and no secret."""
    error = plans.error(planned, **{name: value})
    assert [one.code for one in error.problems] == [code]
    check(error.message, name)
    assert bad_inputs.SECRET not in error.message


@pytest.mark.parametrize(("name", "value"), bad_inputs.rows(bad_inputs.SOUND))
def test_a_sound_value_of_a_variable(name, value):
    planned(**{name: value})


def test_each_variable_has_a_kind_or_a_type_that_is_checked():
    assert {row["kind"] for row in (*shared().values(), *of_roles().values())} <= set(table()["kinds"])
    checked = {kind for kind, row in table()["kinds"].items() if {"any", "pattern", "items", "values"} & set(row)}
    assert set(table()["kinds"]) - checked - set(CHECKS) - set(MATCHES) == {"plan"}
    assert [row for row in table()["roles"] if row not in of_roles().values()] == []


def test_variables_of_roles_count_where_a_host_has_their_role():
    """A host without fleet_recipe may have variables of the same names for somebody else's roles."""
    wrong = {"benchmark_root": "here", "etcd_client_port": 0}
    assert plans.plan_of(wrong)["node1"]["servers"] == []
    assert plans.codes(plans.plan_of, {**wrong, "group_names": ["etcd"]}) == {plans.VALUE}


def test_what_a_play_templates_is_left_to_it():
    """A vault that is locked, variables that only a role has, and those of another host."""
    locked = ValueError("Decryption failed (no vault secrets were found)")
    planned(fleet_hf_token=locked, fleet_proxy_env=locked, fleet_ca_bundle=locked, etcd_name=ValueError("no facts"))
    planned(fleet_hf_endpoint=ValueError("'hostvars' is undefined"))
    undefined = ValueError("'ansible_env' is undefined")
    assert plans.codes(planned, fleet_ca_bundle=undefined) == {"inventory.variable-unresolvable"}


@pytest.mark.parametrize(("content", "key"), named(bad_inputs.FILES))
def test_a_file_that_is_no_recipe(tmp_path, content, key):
    error = plans.error(planned, **write(tmp_path, content))
    assert {one.code for one in error.problems} == {"recipe.file-invalid"}
    check(error.message, key)
    assert error.message.startswith("node1: %s/recipes/mine.yml" % tmp_path)


@pytest.mark.parametrize(("line", "key"), named(bad_inputs.LINES))
def test_a_line_of_a_recipe(tmp_path, line, key):
    replaced = line.partition(":")[0].strip()
    base = {name: value for name, value in {**plans.OWN["cpu-tiny"], "name": "mine"}.items() if name != replaced}
    if replaced == "model":  # with the keys beside the one that is wrong
        others = "" if "path:" in line else "path: '${models}/x', "
        line = line.replace("{", "{repo: a/b, format: bf16, source: standin, id: x, " + others, 1)
    message = refusal(**write(tmp_path, yaml.safe_dump(base, sort_keys=False) + line + "\n"))
    check(message, key)


SECRET = "hf_Zq7abcdefGHIJKLmnopQRST"
OPEN_SECRETS = [
    ({"environment": {"HF_TOKEN": SECRET}}, "environment.HF_TOKEN"),
    ({"environment": {"MY_PASSWORD": "Zq7abc"}}, "environment.MY_PASSWORD"),
    ({"environment": {"HEADERS": "Authorization: Bearer Zq7abcdef"}}, "environment.HEADERS"),
    ({"environment": {"HTTPS_PROXY": "http://me:Zq7abc@proxy:3128"}}, "environment.HTTPS_PROXY"),
    ({"environment": {"NOTE": SECRET}}, "environment.NOTE"),
    ({"arguments": {"hf-token": SECRET}}, "arguments.hf-token"),
    ({"arguments": {"override-generation-config": {"password": "Zq7abc"}}}, "password"),
    ({"command": ["vllm", "serve", "--hf-token", SECRET]}, "command[3]"),
    ({"command": ["vllm", "serve", "--access-token=Zq7abcdef"]}, "command[2]"),
    ({"command": ["env", "HF_TOKEN=" + SECRET, "vllm"]}, "command[1]"),
    ({"servers": {"server": {"environment": {"HF_TOKEN": SECRET}}}}, "environment.HF_TOKEN"),
]


@pytest.mark.parametrize(("override", "key"), OPEN_SECRETS)
def test_a_secret_in_a_recipe_is_refused_without_showing_it(override, key):
    message = refusal(fleet_override=override)
    assert key in message and "'secrets'" in message
    assert "Zq7abc" not in message


VARIABLES = [
    *bad_inputs.VARIABLES,
    *(({"fleet_override": value}, key) for value, key in bad_inputs.OVERRIDES),
    *(({"fleet_hardware": value}, key) for value, key in bad_inputs.HARDWARE),
]


@pytest.mark.parametrize(("changes", "key"), named(VARIABLES))
def test_a_variable(changes, key):
    message = refusal(**changes)
    check(message, key)
    assert any(name in message for name in changes)


def test_all_mistakes_are_said_at_once():
    message = refusal(
        fleet_root="here",
        fleet_verify="fast",
        fleet_recipe_path="x",
        fleet_hardware={"accelerator": "cpu", "count": 0, "cores": "x"},
        fleet_override={"start": {"budget_s": -1}, "model": {"id": "/"}, "servers": {"server": {"port": 0}}},
    )
    for key in (
        "fleet_root", "fleet_verify", "fleet_recipe_path", "fleet_hardware.count", "fleet_hardware.cores",
        "'start.budget_s'", "'model.id'", "'servers.server.port'",
    ):  # fmt: skip
        assert key in message
    assert len(message.splitlines()) == 8


@pytest.mark.parametrize(
    "override",
    [
        {"arguments": {"max-model-len": 262144, "hf-overrides": {"max_position_embeddings": 262144}}},
        {"arguments": {"max-model-len": 262144}, "environment": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
        {"arguments": {"max-model-len": "128K"}},
        {"arguments": {"enforce-eager": False, "no-enforce-eager": True}},
        {"model": {"path": "/models/gpt oss/x"}},
        {"model": {"revision": "refs/pr/1"}},
        {"environment": {"TOKENIZERS_PARALLELISM": "false", "MAX_TOKENS": "8", "A_TOKEN": "", "KEY_FILE": "/etc/key"}},
    ],
)
def test_what_looks_odd_but_is_sound(override):
    override.setdefault("arguments", {})["kv-cache-memory-bytes"] = "64G"
    assert planned(fleet_override=override)["node1"]["servers"]


def nodes(schema, path=()):
    """(path, node) of everything in the recipe schema."""
    schema = {**recipe_schema.resolved(schema), **{key: one for key, one in schema.items() if key != "$ref"}}
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from nodes(item, (*path, name))
    for key in ("items", "additionalProperties", "propertyNames"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], (*path, key))


def test_the_example_of_a_message_is_valid():
    """Each pattern has words for it and an example that it lets pass; each key has a description."""
    every = list(nodes(recipe_schema.recipe_schema()))
    assert [path for path, node in every if path and path[-1] not in NAMES and not node.get("description")] == []
    patterned = [(path, node) for path, node in every if "pattern" in node]
    assert len(patterned) > 40
    validator = type(recipe_schema._validator())
    for path, node in patterned:
        assert node.get("allowed"), path
        assert node.get("examples"), path
        for one in node["examples"]:
            assert list(validator(node).iter_errors(one)) == [], (path, one)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["${", "${port}", "/", "-1", "nan", "auto", "8000", "a\n", "\ud800", "{{ x }}", "..", "1:30"])
    | st.dates()
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers() | st.booleans() | st.none(), inner, max_size=3)
    ),
    max_leaves=6,
)
PATHS = sorted({path for path, _node in nodes(recipe_schema.recipe_schema()) if path})
NAMES = {"items": "server", "additionalProperties": "server-0", "propertyNames": "x"}


@given(path=st.sampled_from(PATHS), value=VALUES)
def test_any_value_at_any_place_is_a_plan_or_one_of_our_errors(path, value):
    for part in reversed([NAMES.get(part, part) for part in path]):
        value = {part: value}
    try:
        planned(fleet_override=value)
    except FleetError as error:
        assert error.message
        assert error.message.startswith("node1: ")


@given(name=st.sampled_from([*shared(), *of_roles()]), value=VALUES)
@example(name="container_engine_mirror", value=1)
def test_any_value_of_a_variable_is_a_plan_or_one_of_our_errors(name, value):
    try:
        planned(**{name: value})
    except FleetError as error:
        assert name in error.message or name == "fleet_recipe"


@given(st.text(max_size=60) | st.binary(max_size=60))
def test_any_file_is_a_recipe_or_one_of_our_errors(tmp_path_factory, content):
    content = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    plans.error(planned, **write(tmp_path_factory.mktemp("recipe"), content))


OTHER_PORT = {"fleet_override": {"servers": {"server": {"port": 9000}}}}


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"ansible_host": "10.0.0.1"}, {"ansible_host": "10.0.0.1", "fleet_root": "/srv/other"}, "one port 8000"),
        (
            {"ansible_connection": "local"},
            {"ansible_connection": "ansible.builtin.local", **OTHER_PORT},
            "one fleet_root",
        ),
        (
            {"ansible_host": "GPU1.example.com", "ansible_connection": "ansible.builtin.ssh", "ansible_port": "22"},
            {"ansible_host": "gpu1.example.com", "ansible_connection": "smart"},
            "one fleet_root",
        ),
        # two machines, or two deployments
        ({"ansible_host": "::1", "ansible_port": 2201}, {"ansible_host": "::1", "ansible_port": 2202}, None),
        ({"ansible_host": "10.0.0.1"}, {"ansible_host": "10.0.0.1", "fleet_root": "/srv/other", **OTHER_PORT}, None),
        ({}, {}, None),
    ],
)
def test_two_names_of_one_machine(first, second, words):
    hosts = {"a": variables(**first), "b": variables(**second)}
    if words is None:
        assert len(fleet.plan_fleet(list(hosts), hosts.get)) == 2
        return
    problem = plans.problem(fleet.plan_fleet, list(hosts), hosts.get)
    assert problem.code == "inventory.one-machine-twice"
    assert problem.message.startswith("a, b: ") and words in problem.message
