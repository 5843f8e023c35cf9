# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main job, in the order in which a user meets it. The tests of this file build on each other."""

from __future__ import annotations

import contextlib
import json
import os
import random
import runpy
import signal
import socket
import subprocess
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import openai
import pytest
import yaml
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure import result
from ansible_collections.inference.fleet.tests.e2e.conftest import UNTOLD, debian_programs, killed_while_asked, patience
from ansible_collections.inference.fleet.tests.runs import CLONE

MODEL = "gpt-oss-tiny-standin"
TOOL = {
    "type": "function",
    "function": {
        "name": "get_system_health",
        "description": "Returns the current health status of the LLM runtime.",
        "parameters": {"type": "object", "properties": {}},
    },
}
PROBES = {
    "identity", "alive", "model-id", "context", "api-key", "warm-up", "chat", "harmony-residue", "form", "echo",
    "reasoning", "effort", "tool-call", "tool-round-trip", "tool-arguments", "tool-result", "second-tool-round",
    "tool-choice", "system-message", "developer-message", "multi-turn", "long-prompt", "long-answer", "exact-text",
    "sampling", "stop-sequence", "responses", "responses-stream", "responses-tools", "streaming", "unbuffered",
    "keep-alive", "concurrent", "still-right", "how-are-you",
}  # fmt: skip
ONLY_1 = "{{ fleet_servers | selectattr('name', 'eq', 'server-1') }}"


def all_passed(probes):
    """Whether every probe passed that a stand-in can pass."""
    return all(ok or (ok is None and name in UNTOLD) for name, ok in probes.items())


def test_check_mode_on_a_fresh_machine_changes_nothing(deployment):
    run = deployment.site("--check", "--diff").ok()
    assert "not verified (check)" in run.output
    assert not deployment.root.exists()
    assert not deployment.reports.exists()


def test_a_port_of_somebody_else_is_an_error_before_anything_is_installed(deployment):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", deployment.ports[1]))
        listener.listen()
        run = deployment.site()
    run.failed("server-1: its port %d on 127.0.0.1 is held by process %d" % (deployment.ports[1], os.getpid()))
    assert not deployment.root.exists()


def test_site_ends_with_two_verified_servers(deployment):
    run = deployment.site(cold=True).ok()
    assert "VERDICTS" in run.output
    verdicts = deployment.verdicts()
    assert sorted(verdicts) == ["server-0", "server-1"]
    for probes in verdicts.values():
        assert set(probes) == PROBES
        assert all_passed(probes), probes
    assert "2 of 2 servers verified" in (deployment.reports / "verdict.html").read_text()


def test_without_a_key_no_server_answers_and_no_key_is_anywhere_but_in_its_secrets(deployment):
    run = deployment.play("playbooks/logs.yml", "-vvv", "-e", "fleet_log_lines=1000").ok()
    assert deployment.api_keys[0] not in run.output
    assert run.output.count("Application startup complete") >= 2
    for path, status in (("/v1/models", 401), ("/invocations", 401), ("/openapi.json", 401), ("/health", 200)):
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(urllib.error.HTTPError) if status == 401 else contextlib.nullcontext() as caught:
                url = "http://127.0.0.1:%d%s" % (deployment.ports[0], path)
                urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60)
            assert status == 200 or caught.value.code == 401
    holders = set()
    files = [path for folder in (deployment.root, deployment.reports) for path in folder.rglob("*") if path.is_file()]
    for path in [*files, *Path("/proc").glob("[0-9]*/cmdline")]:
        with contextlib.suppress(OSError):  # of a process that has ended
            data = path.read_bytes()
            if any(word.encode() in data for key in deployment.api_keys for word in (key, json.dumps(key)[1:-1])):
                holders.add((path.parent.name, path.name, oct(path.stat().st_mode & 0o777)))
    assert holders == {("secrets", "server-%d.json" % number, "0o600") for number in (0, 1)}


def test_second_run_changes_nothing_and_restarts_nothing(deployment):
    before = deployment.pids()
    run = deployment.site("-vvv", cold=True).ok()
    assert run.count("changed") == 0
    assert deployment.pids() == before
    assert run.output.count("Using module file") == 1  # one call of the node
    # the plan, the count of hosts, the check and the report
    assert (run.output.count("TASK ["), run.count("ok"), run.count("skipped")) == (4, 4, 0)
    # some four times as much; compared, so that no machine is too slow for it
    assert run.processor_s < 8 * deployment.play("playbooks/plan.yml", cold=True).ok().processor_s


def test_doctor_finds_nothing_on_a_healthy_fleet_and_its_bundle_has_no_key(deployment, tmp_path):
    run = deployment.play("playbooks/doctor.yml", "-e", "fleet_bundle=%s" % (tmp_path / "bundle.tar.gz")).ok()
    assert "nothing is wrong" in run.output
    (found,) = json.loads((deployment.reports / "doctor.json").read_text())["hosts"].values()
    assert {one["check"] for one in found["findings"] if one["ok"] is None} <= {"logs", "kernel"}
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        text = "".join(archive.extractfile(one).read().decode() for one in archive)
    assert "Application startup complete" in text
    assert [key for key in deployment.api_keys if key in text or json.dumps(key)[1:-1] in text] == []


def test_the_openai_client_gets_answers(deployment):
    """With the second of the keys."""
    url, key = "http://127.0.0.1:%d/v1" % deployment.ports[1], deployment.api_keys[1]
    client = openai.OpenAI(base_url=url, api_key=key, timeout=patience(60))
    messages = [{"role": "user", "content": "Hey, quick check: is everything up and running?"}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL], max_tokens=512)
    assert first.choices[0].finish_reason == "tool_calls"
    call = first.choices[0].message.tool_calls[0]
    assert call.function.name == "get_system_health"
    assert json.loads(call.function.arguments) == {}
    second = client.chat.completions.create(
        model=MODEL,
        messages=[
            *messages,
            {"role": "assistant", "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": '{"status":"ok","uptime_seconds":372045}'},
        ],
        tools=[TOOL],
        max_tokens=512,
    )
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content

    parts = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=512, stream=True)
    streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert streamed

    response = client.responses.create(model=MODEL, input="How are you?", max_output_tokens=512)
    assert response.output_text


def test_a_real_prometheus_reads_the_servers(deployment, tmp_path):
    """Debian's Prometheus with the role's rules: every metric of engines has data for both servers."""
    programs, folder = debian_programs("prometheus"), CLONE / "roles" / "monitoring"
    targets = [
        {
            "targets": ["127.0.0.1:%d" % port],
            "labels": {"host": "n", "server": "server-%d" % at, "model": MODEL, "recipe": "r"},
        }
        for at, port in enumerate(deployment.ports)
    ]
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "files" / "rules.yml")],
        "scrape_configs": [{"job_name": "engines", "static_configs": targets}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    port = deployment.ports[0] + 9
    command = [programs / "prometheus", "--config.file=%s" % (tmp_path / "prometheus.yml"),
               "--storage.tsdb.path=%s" % (tmp_path / "data"), "--web.listen-address=127.0.0.1:%d" % port]  # fmt: skip
    client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % deployment.ports[0], api_key=deployment.api_keys[0])

    def ask(expression):
        url = "http://127.0.0.1:%d/api/v1/query?%s" % (port, urllib.parse.urlencode({"query": expression}))
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]["result"]

    def values(expression):
        try:
            return {one["metric"]["server"]: float(one["value"][1]) for one in ask(expression)}
        except OSError:
            return {}

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            for name in ("requests_running", "requests_waiting", "kv_cache_usage:ratio", "output_tokens:rate"):
                deployment.wait_for(lambda name=name: len(values("fleet:" + name)) == 2, 60, name)
            client.completions.create(model=MODEL, prompt="a", max_tokens=16)
            for name in ("ttft_seconds:p95", "tpot_seconds:p95", "output_tokens:rate"):
                deployment.wait_for(lambda name=name: values("fleet:" + name).get("server-0", 0) > 0, 60, name)
            assert values('up{job="engines"}') == {"server-0": 1, "server-1": 1}
            boards = yaml.safe_load((folder / "vars" / "dashboards.yml").read_text())["monitoring_dashboards"]
            for panel in (one for board in boards.values() for one in board["panels"]):
                for query in panel["queries"]:
                    ask(query["expr"])  # HTTP 400 for one that does not parse
        finally:
            process.terminate()


def test_a_server_killed_in_the_middle_of_a_benchmark_fails_it_and_is_back_and_verified_without_a_play(deployment):
    before = deployment.pids()
    profile = {"tool": "vllm-bench", "input_tokens": 16, "output_tokens": 32, "concurrency": 4, "requests": 400}
    with killed_while_asked(deployment, before["server-1"], 400):
        run = deployment.play(
            "playbooks/benchmark.yml", "-e", json.dumps({"benchmark_profile": "killed", "benchmark_servers": ONLY_1}),
            override={"benchmark": {"profiles": {"killed": profile}}},
        )  # fmt: skip
    (document,), problems = result.history(str(deployment.reports))
    assert problems == []
    counts = document["counts"]
    assert (document["ok"], document["servers"], counts["asked"]) == (False, ["server-1"], 400)
    assert 0 < counts["completed"] == 400 - counts["failed"] < 400
    assert document["void"] == "server-1 changed or restarted during the run"
    assert sum(one["count"] for one in document["errors"]) == counts["failed"]
    run.failed(
        "The benchmark of server-1 by vllm-bench failed: %d of 400 requests completed. server-1 changed or restarted "
        "during the run. %d of 400 requests failed." % (counts["completed"], counts["failed"])
    )
    deployment.wait_for(lambda: deployment.state("server-1")["pid"] != before["server-1"], 300, "a new process")
    url = "http://127.0.0.1:%d/v1" % deployment.ports[1]
    client = openai.OpenAI(base_url=url, api_key=deployment.api_keys[0], max_retries=0)

    def answers():
        try:
            return client.models.list().data[0].id == MODEL
        except openai.OpenAIError:
            return False

    deployment.wait_for(answers, 600, "an answer")
    run = deployment.play("playbooks/verify.yml", "-e", "fleet_verify=full").ok()
    assert run.count("changed") == 0
    assert deployment.pids()["server-0"] == before["server-0"]


def families(deployment, *arguments):
    """The recipe cpu-families: server-0 as before, and a server of another model on the port of server-1."""
    ports = {"servers": {"chat": {"port": deployment.ports[1]}}}
    return deployment.site("-e", "fleet_recipe=cpu-families", *arguments, override=ports).ok()


def test_two_families_are_each_verified_by_their_own_probes(deployment):
    before = deployment.pids()
    families(deployment)
    verdicts = deployment.verdicts()
    assert sorted(verdicts) == ["chat-0", "server-0"]
    assert False not in [ok for probes in verdicts.values() for ok in probes.values()]
    assert verdicts["server-0"]["identity"] is True
    assert verdicts["chat-0"]["chat"] is verdicts["chat-0"]["json-schema"] is verdicts["chat-0"]["api-key"] is True
    assert "effort" not in verdicts["chat-0"]
    assert families(deployment).count("changed") == 0
    assert deployment.state("server-0")["pid"] == before["server-0"]


@pytest.mark.soak
def test_the_other_server_becomes_one_of_embeddings(deployment):
    families(deployment)
    before = deployment.state("server-0")["pid"]
    assert families(deployment, "-e", "fleet_overlay=embedding").count("changed") > 0
    assert deployment.verdicts()["chat-0"]["embedding"] is deployment.verdicts()["chat-0"]["embedding-repeat"] is True
    assert deployment.state("server-0")["pid"] == before


def adapter_in(folder):
    """An adapter of the stand-in of Qwen3, with which its answer begins at its seventh word: after a line break a LoRA
    of rank 1 on the feed-forward adds the sixth word to the hidden state. Returns those words."""
    at = {"r": 1, "lora_alpha": 1, "target_modules": ["gate_proj", "up_proj", "down_proj"]}
    config = {"peft_type": "LORA", "base_model_name_or_path": "inference-fleet/qwen3-tiny-standin", **at}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    chat = runpy.run_path(str(CLONE / "tools/standin/chat.py"))
    size, width, matrix = chat["SIZE"], chat["WIDTH"], chat["matrix"]
    sixth, tensors = 256 + len(chat["SPECIAL"]) + 5, {}
    for name, first, second in (
        ("gate", ([1, size], {(0, 10): 1}), ([width, 1], {(0, 0): 1})),
        ("up", ([1, size], {(0, 10): 1}), ([width, 1], {(0, 0): 1})),
        ("down", ([1, width], {(0, 0): 1}), ([size, 1], {(sixth, 0): 1})),
    ):
        for letter, (shape, cells) in (("A", first), ("B", second)):
            data = matrix(*shape, cells)[1]
            tensors["base_model.model.model.layers.0.mlp.%s_proj.lora_%s.weight" % (name, letter)] = (shape, data)
    (folder / "adapter_model.safetensors").write_bytes(chat["safetensors"](tensors))
    return "".join(chat["ANSWER"][6:])


@pytest.mark.soak
def test_an_adapter_changes_the_answers_of_its_name_only(deployment, tmp_path):
    words = adapter_in(tmp_path)
    model = {"adapters": [{"name": "short", "path": str(tmp_path)}]}
    change = {"servers": {"chat": {"port": deployment.ports[1], "model": model, "arguments": {"max-lora-rank": 1}}}}
    deployment.site("-e", "fleet_recipe=cpu-families", override=change).ok()
    assert deployment.verdicts()["chat-0"]["adapters"] is deployment.verdicts()["chat-0"]["chat"] is True
    client = openai.OpenAI(base_url="http://127.0.0.1:%d/v1" % deployment.ports[1], api_key=deployment.api_keys[0])
    answers = {
        name: client.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hello"}], temperature=0)
        for name in ("short", "qwen3-tiny-standin")
    }
    said = {name: answer.choices[0].message.content for name, answer in answers.items()}
    assert said["short"] == words != said["qwen3-tiny-standin"]
    assert deployment.site("-e", "fleet_recipe=cpu-families", override=change).ok().count("changed") == 0
    (tmp_path / "adapter_config.json").write_text(
        (tmp_path / "adapter_config.json").read_text().replace('"r": 1', '"r": 8')
    )
    deployment.site("-e", "fleet_recipe=cpu-families", override=change).failed("rank is 8")


@pytest.mark.soak
def test_with_an_empty_encodings_directory_the_vocabulary_file_is_named(deployment, tmp_path):
    override = {"environment": {"TIKTOKEN_ENCODINGS_BASE": str(tmp_path)}, "servers": {"server": {"count": 1}}}
    deployment.site().ok()
    run = deployment.site(override=override)
    # Waiting is no use then: a play that waits for the start's budget does not end in its time (conftest.py).
    run.failed(
        "o200k_base.tiktoken", "TIKTOKEN_ENCODINGS_BASE", "The old definition was restored and answers: server-0."
    )
    # The report does not go on saying what was true before, and the second server serves though it is not in the plan.
    assert deployment.verdicts()["server-0"]["identity"] is False
    assert "server-1" in {folder.stem for folder in (deployment.root / "etc/inference-fleet/servers").iterdir()}


def test_purge_leaves_nothing(deployment):
    deployment.play("playbooks/stop.yml", "-e", "fleet_purge=true").ok()
    assert deployment.processes() == []
    assert [str(path) for path in Path(deployment.root).rglob("*") if not path.is_dir()] == []
    assert deployment.play("playbooks/stop.yml", "-e", "fleet_purge=true").ok().count("changed") == 0


@pytest.mark.soak
def test_random_kills_of_any_process(deployment):
    """Kill -9 any process of the deployment, the service manager too, at any moment; every time it heals."""
    seed = int(os.environ.get("SOAK_SEED", "0")) or random.randrange(1 << 30)
    chance = random.Random(seed)
    print("seed", seed)
    override = {"environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}}
    deployment.site(override=override).ok()
    for number in range(int(os.environ.get("SOAK_ROUNDS", "10"))):
        pid, command = chance.choice(deployment.processes())
        print("round %d: kill -9 %d (%s)" % (number, pid, command[:80]))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(chance.uniform(0, 10))
        deployment.site(override=override).ok()
        assert all(False not in probes.values() for probes in deployment.verdicts().values())
        # The two servers and their engines, no process twice.
        engines = [command for _pid, command in deployment.processes() if "EngineCore" in command]
        assert len(engines) == 2, deployment.processes()
    deployment.play("playbooks/stop.yml").ok()
    assert deployment.processes() == []
