# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sequence on good, slow and dead servers, a recipe's probes, other families, quick and check mode, workers."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.engines.vllm import ENGINE as VLLM
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.servers import causes, readiness
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.verify import asking, probes, runner, streams
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine, free_port
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.test_judging import ENDPOINTS, INSTANCES
from ansible_collections.inference.fleet.tests.unit.plugins.module_utils.verify.verdicts import (
    AT_ONCE,
    CHAT,
    SEQUENCE,
    TOGETHER,
    by_name,
    entry_of,
    failing,
    unmeasured,
    verdict_of,
    watch,
)


@pytest.fixture(autouse=True)
def in_time(monkeypatch):
    monkeypatch.setattr(probes, "LATE_S", 0)
    # the scripted engine is faster than an engine, so shorter streams show whether something buffers them
    monkeypatch.setattr(streams, "SHORT_STREAM_MS", 10)


def test_a_good_server_passes_everything():
    with ScriptedEngine() as engine:
        verdict = verdict_of(engine)
    assert [probe["name"] for probe in verdict["probes"]] == SEQUENCE
    assert (failing(verdict), unmeasured(verdict), verdict["ok"]) == ({}, {}, True)
    assert {key: verdict[key] for key in ("schema", "host", "server", "mode", "url", "model_id", "hash")} == {
        "schema": 1, "host": "node-1", "server": "server-0", "mode": "full", "model_id": "gpt-oss-120b",
        "url": "http://127.0.0.1:%d" % engine.port, "hash": entry_of(engine.port)["hash"],
    }  # fmt: skip
    assert time.strptime(verdict["at"], "%Y-%m-%dT%H:%M:%SZ")
    for probe in verdict["probes"]:
        assert set(probe) == {"name", "ok", "ms", "sent", "got", "cause"}
        assert isinstance(probe["ms"], int)
        assert probe["got"] or probe["name"] in ("unbuffered", "context")  # what scripted engines cannot show


def body_of(question, **more):
    return {"model": "gpt-oss-120b", "messages": [{"role": "user", "content": question}], **more}


def test_what_is_sent():
    with ScriptedEngine(together=TOGETHER) as engine:
        verdict_of(engine)
    bodies = engine.bodies(CHAT)
    usual = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 1024}
    for body in (
        body_of("What is 19*24? Answer with the number.", **{**usual, "temperature": 0}),
        body_of("What is 16*47? Answer with the number."),
        body_of("What is 17*23? Answer with the number.", **usual),
        body_of("What is 17*23? Answer with the number.", **usual, stream=True),
    ):
        assert body in bodies
    assert len(engine.held) == AT_ONCE


@pytest.mark.parametrize(("fault", "streams"), [("words-first", 2), ("stream-words-first", 3)])
def test_a_model_that_answers_in_words_first_is_asked_again(fault, streams):
    with ScriptedEngine(fault) as engine:
        verdict = verdict_of(engine)
    assert verdict["ok"] is True
    assert len([body for body in engine.bodies(CHAT) if body.get("stream") and body.get("tools")]) == streams
    again = "Call get_system_health now and tell me what it says."
    assert (again in by_name(verdict)["tool-call"]["sent"]) is (fault == "words-first")


def test_without_the_right_api_key_nothing_more_is_asked():
    with ScriptedEngine(api_key="sk-right") as engine:
        bad = verdict_of(engine)
        assert len(engine.requests) == 2  # /health and /v1/models
        other = verdict_of(engine, asking.Options(timeout=60, api_key="sk-other"))
    assert failing(bad) == {"model-id": causes.API_KEY}
    assert failing(other) == {"model-id": causes.API_KEY_REFUSED}


@pytest.mark.parametrize(("expected", "listed", "engine_name", "cause"), [
    ("gpt-oss-120b", [], "vllm", VLLM.no_models),
    ("openai/gpt-oss-120b", ["gpt-oss-120b"], "trtllm",
     "the server lists the basename gpt-oss-120b instead of openai/gpt-oss-120b: "),
    ("gpt-oss-120b", ["/mnt/models/gpt-oss-120b"], "vllm",
     "the server lists the path /mnt/models/gpt-oss-120b instead of gpt-oss-120b: "),
    ("gpt-oss-120b", ["gpt-oss-20b"], "vllm", "the server lists gpt-oss-20b instead of gpt-oss-120b: "),
])  # fmt: skip
def test_the_model_id_must_be_the_planned_one_and_the_rest_is_still_measured(expected, listed, engine_name, cause):
    with ScriptedEngine(listed=listed) as engine:
        verdict = verdict_of(engine, entries=[entry_of(engine.port, model_id=expected, engine=engine_name)])
    assert failing(verdict)["model-id"].startswith(cause)
    assert set(failing(verdict)) == ({"model-id"} if listed else {"model-id", "warm-up"})
    assert not listed or unmeasured(verdict) == {}


def own_probe(name, path=CHAT, body=None, expect=None):
    """A probe of a recipe, as the operation's arguments have it."""
    expect = {"status": 200, "contains": [], "field": None, **(expect or {})}
    return {"name": name, "path": path, "body": body, "expect": expect}


# -- the recipe's own probes -------------------------------------------------------------------------------------------

MESSAGES = {"messages": [{"role": "user", "content": "Where is New York?"}]}
PAGES = {"/version": '{"version": "0.32.0"}', "/name": '{"name": "K\\u00f6ln"}'}
MISSING = "the recipe expects %s in the answer, and it is empty or missing"


@pytest.mark.parametrize(("faults", "probe", "cause"), [
    ((), {"body": MESSAGES, "expect": {"contains": ["391"], "field": "choices.0.message.content"}}, None),
    ((), {"path": "/version", "expect": {"contains": ["0.32"], "field": "version"}}, None),
    # whether or not a reasoning item comes before the message
    ((), {"path": "/v1/responses", "body": {"input": "Who?"}, "expect": {"field": "output.-1.role"}}, None),
    ((), {"path": "/name", "expect": {"contains": ["Köln"]}}, None),  # the body escapes it
    ((), {"path": "/nothing", "expect": {"status": 404}}, None),
    ((), {"body": MESSAGES, "expect": {"field": "choices.0.message.refusal"}},
     MISSING % "choices.0.message.refusal"),
    ((), {"body": MESSAGES, "expect": {"contains": ["NYC"]}}, "the recipe expects the answer to contain 'NYC'"),
    ("length", {"body": MESSAGES, "expect": {"field": "choices.0.message.content"}}, causes.LENGTH),
    ((), {"path": "/nothing"}, causes.PATH_UNKNOWN),
    ((), {"body": dict(MESSAGES, model="x")}, causes.MODEL_UNKNOWN),
])  # fmt: skip
def test_a_recipes_probe_comes_last_and_passes_or_has_its_cause(faults, probe, cause):
    with ScriptedEngine(faults, pages=PAGES) as engine:
        verdict = verdict_of(engine, asking.Options(timeout=60, probes=[own_probe("own", **probe)]))
    own = verdict["probes"][-1]
    assert (own["name"], own["ok"], own["cause"]) == ("own", cause is None, cause)
    if probe.get("body") == MESSAGES:
        assert engine.bodies(CHAT)[-1] == dict(MESSAGES, model="gpt-oss-120b")  # the model is filled in


def test_a_leak_in_a_recipes_probe_is_found():
    with ScriptedEngine("leak-in-new-york") as engine:
        verdict = verdict_of(engine, asking.Options(timeout=60, probes=[own_probe("own", body=MESSAGES)]))
    assert failing(verdict) == {"harmony-residue": VLLM.residue}
    assert by_name(verdict)["harmony-residue"]["got"] == (
        "in the answer to own: in the content: <|channel|>final<|message|>In the north-east."
    )


# -- other families than gpt-oss ---------------------------------------------------------------------------------------

TOOLS = {"tool-call-parser": "hermes", "max-num-seqs": 4}
OWN = [own_probe("own-chat", body={"messages": [{"role": "user", "content": "Hello"}]}),
       own_probe("own-models", path="/v1/models")]  # fmt: skip


def judged(faults=(), family="chat", arguments=None, mode="full", **changes):
    with ScriptedEngine(faults) as engine:
        entry = plan_entry(engine.port, arguments=arguments or {"max-num-seqs": 4}, family=family, **changes)
        return verdict_of(engine, asking.Options(mode=mode, timeout=60, probes=OWN), [entry])


def test_a_chat_model_is_asked_for_tools_if_it_has_a_parser_and_for_nothing_of_gpt_oss():
    verdict = judged()
    assert failing(verdict) == {}
    names = set(by_name(verdict))
    assert {"own-chat", "own-models", "chat", "multi-turn", "json-schema", "streaming", "concurrent"} <= names
    assert not {"effort", "harmony-residue", "developer-message", "responses", "reasoning", "tool-call"} & names
    verdict = judged(arguments=TOOLS)
    assert failing(verdict) == {}
    assert by_name(verdict)["tool-arguments"]["ok"] is True


def vectors(change):
    return (Fault("vectors", value=change),)


@pytest.mark.parametrize(("family", "fault", "probe", "cause"), [
    ("chat", "schema-ignored", "json-schema", causes.SCHEMA_IGNORED),
    ("chat", "wrong-answer", "chat", causes.WRONG_ANSWER),
    ("embedding", vectors(lambda found: [[0.0] * 26] * len(found)), "embedding", causes.VECTORS),
    ("embedding", vectors(lambda found: found[:-1]), "embedding-order", causes.VECTORS),
    ("embedding", vectors(lambda found: found[::-1]), "embedding-repeat", causes.VECTOR_CHANGES),
])  # fmt: skip
def test_faults_of_other_families_have_their_causes(family, fault, probe, cause):
    assert failing(judged(fault, family))[probe] == cause


def test_an_answer_that_no_probe_foresees_fails_its_probe_and_no_other():
    verdict = judged(vectors(lambda found: [[10**400] * 26] * len(found)), "embedding")
    assert "OverflowError" in failing(verdict)["embedding"]
    assert by_name(verdict)["own-models"]["ok"] is True


def test_an_embedding_model_is_asked_for_vectors_of_its_size(tmp_path):
    verdict = judged(family="embedding")
    assert failing(verdict) == {}
    assert [name for name in by_name(verdict) if name.startswith(("embedding", "own"))] == [
        "embedding", "embedding-order", "embedding-repeat", "own-models"]  # fmt: skip
    assert list(by_name(judged(family="embedding", mode="quick"))) == ["identity", "model-id", "embedding"]
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 4096}))
    assert failing(judged(family="embedding", weights=[str(tmp_path)]))["embedding"] == causes.VECTOR_SIZE


def test_an_embedding_server_is_ready_when_it_answers_a_vector():
    with ScriptedEngine() as engine:
        assert readiness.probe(plan_entry(engine.port, family="embedding"), 60) is None
        assert [path for method, path, *_rest in engine.requests if method == "POST"] == ["/v1/embeddings"]


# -- servers that are dead, dying or slow ------------------------------------------------------------------------------


def test_a_dead_server_is_found_once_and_at_once():
    started = time.monotonic()
    verdict = verdict_of(free_port(), asking.Options(timeout=1200))
    assert time.monotonic() - started < 600  # less than the timeout of one request
    assert failing(verdict) == {"alive": causes.TRANSPORT["refused"]}
    rest = dict.fromkeys(SEQUENCE[2:], "not run: alive failed")
    nothing = dict.fromkeys(("harmony-residue", "form", "echo"), "not run: no probe got an answer")
    assert unmeasured(verdict) == {**rest, **nothing}
    assert by_name(verdict)["alive"]["got"] == "no answer: connection refused"
    assert verdict["ok"] is False


def test_a_server_that_dies_on_the_way_is_not_asked_further():
    with ScriptedEngine("dies-at-tools") as engine:
        verdict = verdict_of(engine)
    bad = failing(verdict)
    assert bad.pop("tool-call") == causes.TRANSPORT["reset"]
    assert set(bad) <= {
        "responses", "responses-stream", "responses-tools", "system-message", "developer-message", "multi-turn",
        "stop-sequence", "long-prompt", "sampling", "exact-text", "long-answer", "tool-round-trip", "streaming",
    }  # fmt: skip
    assert set(bad.values()) <= {causes.TRANSPORT[error] for error in ("refused", "reset")}
    later = unmeasured(verdict)
    assert later["concurrent"].startswith("not run: ")
    assert later["still-right"].startswith("not run: ")


class Patient(asking.Options):
    """A minute for each request, and half a second once hangs() is true: what does not hang may take its time."""

    def __init__(self, hangs):
        self.hangs = hangs
        super().__init__()

    @property
    def timeout(self):
        return 0.5 if self.hangs() else 60

    @timeout.setter
    def timeout(self, seconds):
        pass


def test_a_hanging_server_costs_two_timeouts_not_ten():
    with ScriptedEngine("hangs-later") as engine:
        verdict = verdict_of(engine, Patient(lambda: len(engine.bodies(CHAT)) >= 1))
    assert len(engine.bodies(CHAT)) < 26  # chat beside effort's twelve, then what is asked side by side
    assert set(failing(verdict)) <= {"chat", "effort", "tool-call", "system-message", "sampling", "exact-text"}
    assert set(failing(verdict).values()) == {causes.TRANSPORT["timeout"]}
    assert unmeasured(verdict)["concurrent"].startswith("not run: ")


def test_the_first_completion_may_take_five_times_as_long():
    with ScriptedEngine("hangs") as engine:
        verdict = verdict_of(
            engine, Patient(lambda: "/v1/models" in [path for _method, path, *_rest in engine.requests])
        )
    assert failing(verdict) == {"warm-up": causes.TRANSPORT["timeout"]}
    assert by_name(verdict)["warm-up"]["got"] == "no answer: no complete answer in time (2.5 s)"
    assert by_name(verdict)["warm-up"]["ms"] >= 2500


@pytest.mark.parametrize("seconds", [0.3, 0.15])
def test_a_sequence_that_takes_too_long_fails_where_it_stands(monkeypatch, seconds):
    monkeypatch.setattr(asking, "TOTAL_FACTOR", 1)
    with ScriptedEngine(seconds=seconds) as engine:
        verdict = verdict_of(engine, asking.Options(timeout=1))
    assert verdict["ok"] is False
    cause = next(iter(failing(verdict).values()))
    assert set(failing(verdict).values()) == {cause}  # of all that were asked side by side
    assert cause == causes.too_slow(1, "1 times the timeout")
    assert unmeasured(verdict)["still-right"].startswith("not run: ")


# -- quick, check, many ------------------------------------------------------------------------------------------------


def test_quick_reads_the_id_and_completes_once():
    with ScriptedEngine() as engine:
        verdict = verdict_of(engine, asking.Options(mode="quick", timeout=60, probes=[own_probe("own", path="/x")]))
    names = ["identity", "model-id", "completion"]
    assert [(probe["name"], probe["ok"]) for probe in verdict["probes"]] == [(name, True) for name in names]
    assert [request[:2] for request in engine.requests] == [("GET", "/v1/models"), ("POST", CHAT)]


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_health_and_models_have_a_short_timeout_of_their_own(monkeypatch, mode):
    """A server that takes connections and never answers, as one that was stopped by a signal does."""
    assert asking.LOOK_S == 10
    monkeypatch.setattr(asking, "LOOK_S", 0.3)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        verdict = verdict_of(deaf.getsockname()[1], asking.Options(mode=mode, timeout=1200))
    name = {"quick": "model-id", "full": "alive"}[mode]
    assert failing(verdict) == {name: causes.TRANSPORT["timeout"]}
    assert by_name(verdict)[name]["got"] == "no answer: no complete answer in time (0.3 s)"


def test_the_whole_of_quick_has_a_limit_of_its_own():
    """Where the models are listed and completions hang."""
    assert asking.Options().quick_timeout + 10 <= 30
    with ScriptedEngine("hangs") as engine:
        verdict = verdict_of(engine, asking.Options(mode="quick", timeout=1200, quick_timeout=0.5))
    assert failing(verdict) == {"completion": causes.too_slow(0.5, "verify_quick_timeout_s")}


def test_check_mode_verifies_what_is_there_and_stays():
    with ScriptedEngine() as engine:
        assert verdict_of(engine, check_mode=True, servers_changed=False)["ok"] is True
        engine.requests.clear()
        about_to_change = verdict_of(engine, check_mode=True, servers_changed=True)
        assert engine.requests == []
    absent = verdict_of(free_port(), check_mode=True)
    for verdict in (about_to_change, absent):
        assert (verdict["ok"], unmeasured(verdict)) == (None, dict.fromkeys(SEQUENCE, "not verified (check)"))


def test_all_servers_of_a_node_at_once_and_only_those_with_a_port_of_their_own():
    both = threading.Barrier(2)
    pages = {"/health": lambda: "ok" if both.wait(60) in (0, 1) else ""}  # neither answers before both are asked
    with ScriptedEngine(pages=pages) as one, ScriptedEngine("drop-tool-call", pages=pages) as two:
        entries = [plan_entry(one.port), plan_entry(two.port, "server-1"), plan_entry(None, "worker-0", role="decode")]
        result = runner.verify_servers(entries, asking.Options(timeout=60), watch)
    found = {verdict["server"]: verdict["ok"] for verdict in result["verdicts"]}
    assert found == {"server-0": True, "server-1": False}
    assert result["ok"] is False


# ---- workers behind a frontend


HEALTH = {"status": "healthy", "endpoints": ENDPOINTS, "instances": INSTANCES}


REQUESTS = 'dynamo_component_requests_total{dynamo_endpoint="generate"} %d\n'
MOVED = 'vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 4096.0\n'


def counter(step=1, text=REQUESTS):
    """The metrics of a worker's system port, whose counter rises by `step` with every look."""
    counts = itertools.count(6, step)
    return lambda: text % next(counts) if "%d" in text else text


def disaggregated(health=None, prefill=None, decode=None, ports=True, elsewhere=False):
    with (
        ScriptedEngine(pages={"/health": json.dumps(health or HEALTH)}) as front,
        ScriptedEngine(pages={"/metrics": prefill or counter()}) as one,
        ScriptedEngine(pages={"/metrics": decode or counter()}) as two,
    ):
        entries = [
            plan_entry(front.port, "frontend", role="frontend", engine="dynamo"),
            plan_entry(None, "prefill-0", role="prefill", ports={"system": one.port} if ports else {}),
            plan_entry(None, "decode-0", role="decode", ports={"system": two.port} if ports else {}),
        ]
        others = []
        if elsewhere:  # the prefill worker is another host's
            one = entries.pop(1)
            others = [{**{key: one[key] for key in ("name", "role", "bind", "ports")}, "host": "node-2"}]
        return verdict_of(front, entries=entries, elsewhere=others)


ONE_OF_EACH = (None, "prefill 1 of 1, decode 1 of 1")
NO_PREFILL = {"status": "healthy", "instances": HEALTH["instances"][:2]}
COUNTED = "dynamo_component_requests_total: "
NO_PORT = "not measurable: the workers have no system port (DYN_SYSTEM_PORT) to read counters from"


@pytest.mark.parametrize(("given", "ok", "expected"), [
    ({}, True, {
        "census": ONE_OF_EACH, "disaggregation": (None, COUNTED + "prefill-0 6 -> 7, decode-0 6 -> 7")}),
    # workers of other hosts are counted, and verified there
    ({"elsewhere": True}, True, {
        "census": ONE_OF_EACH, "disaggregation": (None, COUNTED + "decode-0 6 -> 7, node-2/prefill-0 6 -> 7"),
        "identity": (None, "frontend answers; decode-0 answers")}),
    # a worker is missing although /health is 200, gets no work, or fetches no cache
    ({"health": NO_PREFILL}, False, {"census": (causes.CENSUS, "prefill 0 of 1, decode 1 of 1; HTTP 200 {")}),
    ({"prefill": counter(0)}, False, {"disaggregation": (causes.idle_cause(["prefill-0"]), COUNTED)}),
    ({"decode": counter(text=REQUESTS + MOVED)}, False, {
        "disaggregation": (causes.still_cause(["decode-0"]),
                           "; vllm:nixl_bytes_transferred_sum: decode-0 4096 -> 4096")}),
    # there are no counters
    ({"ports": False}, True, {"disaggregation": (NO_PORT, "")}),
    ({"decode": counter(text="python_info 1\n")}, True, {
        "disaggregation": ("not measurable: no counters at the system port of decode-0", COUNTED)}),
])  # fmt: skip
def test_workers_are_counted_and_must_do_their_part(given, ok, expected):
    verdict = disaggregated(**given)
    assert list(by_name(verdict)) == ["identity", "alive", "census", *SEQUENCE[2:], "disaggregation"]
    assert verdict["ok"] is ok
    assert failing(verdict) == ({} if ok else {probe: cause for probe, (cause, _got) in expected.items()})
    for probe, (cause, got) in expected.items():
        found = by_name(verdict)[probe]
        assert found["cause"] == cause and got in (found["got"] or "")


def test_counters_that_come_late_are_waited_for(monkeypatch):
    monkeypatch.setattr(probes, "LATE_S", 30)
    looks = iter((5, 5, 6))
    verdict = disaggregated(prefill=lambda: REQUESTS % next(looks))
    assert verdict["ok"] is True
    assert "prefill-0 5 -> 6" in by_name(verdict)["disaggregation"]["got"]
