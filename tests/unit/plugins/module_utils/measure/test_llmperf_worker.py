# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is mended of LLMPerf while it runs. The tool itself, Ray and requests are not here; stand-ins are."""

from __future__ import annotations

import json
import sys
import types

import pytest
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.measure.tools import llmperf_worker

URLS = "http://a/v1;http://b/v1/"
PARTS = [{"reasoning": "one "}, {"reasoning_content": "two "}, {"content": "three"}, {"role": "assistant"}]


class Answer:
    """Of a server: its status and the lines of its stream."""

    def __init__(self, status, lines):
        self.status_code, self.lines, self.text = status, lines, "no such model"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def iter_lines(self, chunk_size):
        yield from self.lines


def lines(parts):
    chunks = [{"choices": [{"delta": part}]} for part in parts]
    return [b"data: " + json.dumps(chunk).encode() for chunk in chunks] + [b"", b"data: [DONE]"]


@pytest.fixture
def client(monkeypatch):
    asked, answers = [], {}

    def post(address, **given):
        asked.append((address, given))
        if isinstance(answers["next"], Exception):
            raise answers["next"]
        return answers["next"]

    monkeypatch.setitem(sys.modules, "requests", types.SimpleNamespace(post=post))
    monkeypatch.setitem(sys.modules, "numpy", types.SimpleNamespace(float64=float))
    monkeypatch.setenv("OPENAI_API_BASE", URLS)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    found = llmperf_worker.actor(object)(1)
    found.asked, found.answers = asked, answers
    return found


def ask(client, answer):
    client.answers["next"] = answer
    given = types.SimpleNamespace(prompt=("Hello", 5), model="m", sampling_params={"max_tokens": 3})
    metrics, text, same = client.llm_request(given)
    assert same is given
    return metrics, text


def test_reasoning_of_either_name_is_text(client):
    metrics, text = ask(client, Answer(200, lines(PARTS)))
    assert (text, metrics["error_code"], metrics["number_input_tokens"]) == ("one two three", None, 5)
    assert 0 < metrics["ttft_s"] <= metrics["end_to_end_latency_s"]
    _address, given = client.asked[0]
    assert given["json"]["max_tokens"] == 3 and given["headers"] == {"Authorization": "Bearer sk-x"}


def test_each_client_starts_at_another_address_and_asks_them_in_turn(client):
    for _number in range(3):
        ask(client, Answer(200, lines(PARTS)))
    assert [address for address, _given in client.asked] == [
        "http://%s/v1/chat/completions" % name for name in ("b", "a", "b")
    ]
    made = []
    clients = llmperf_worker.Clients(types.SimpleNamespace(remote=made.append))
    clients.remote()
    clients.remote()
    assert made == [0, 1]


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (Answer(404, []), 404, "no such model"),
        (OSError("Connection refused"), -1, "Connection refused"),
        (Answer(200, lines([])), -1, "the answer was empty"),
        (Answer(200, [b'data: {"error": {"code": 500, "message": "out of memory"}}']), 500, "out of memory"),
    ],
)
def test_a_request_that_fails_is_a_record_and_its_time_is_no_zero(client, answer, code, message):
    metrics, _text = ask(client, answer)
    assert (metrics["error_code"], metrics["error_msg"]) == (code, message)
    assert metrics["end_to_end_latency_s"] > 0


def test_one_tokenizer_whatever_is_asked_for():
    loader = types.SimpleNamespace(from_pretrained=lambda path: path)
    assert llmperf_worker.one_tokenizer(loader, "/m").from_pretrained("another") == "/m"


def test_ray_is_not_given_the_environment():
    begun = []
    llmperf_worker.without_environment(lambda **given: begun.append(given))(runtime_env={"env_vars": {"A": "sk-x"}})
    assert begun == [{"include_dashboard": False}]


def test_a_source_without_the_patches_is_refused(tmp_path, monkeypatch):
    script = tmp_path / "token_benchmark_ray.py"
    script.write_text("--llm-api")
    monkeypatch.setattr(sys, "argv", ["program", str(script)])
    with pytest.raises(SystemExit) as caught:
        llmperf_worker.main()
    assert str(caught.value) == "%s is without the Neuron SDK's patches: it has no --tokenizer." % script
