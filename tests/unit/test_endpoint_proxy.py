# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real HAProxy with the role's configuration, in front of scripted engines on loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.inference.fleet.tests.unit.engines import certificates, proxy
from ansible_collections.inference.fleet.tests.unit.engines.plan_entries import plan_entry
from ansible_collections.inference.fleet.tests.unit.engines.scripted_engine import Fault, ScriptedEngine
from ansible_collections.inference.fleet.tests.unit.engines.small_node import free_port, wait_until

MODEL, DEPLOYMENT = "gpt-oss-120b", {"model": {"repo": "openai/gpt-oss-120b", "family": "gpt_oss"}}
KEYS = {"alice": "key-of-alice", "bob": "key-of-bob"}
CHECKED = {"endpoint_check_interval_s": 1, "endpoint_check_timeout_s": 2}
ENGINE = "import scripted_engine as s, time; s.PORTS = [%d]; s.ScriptedEngine().__enter__(); time.sleep(600)"


@pytest.fixture(autouse=True)
def needs_haproxy():
    proxy.require_haproxy()


def post(port, key="key-of-alice", path="/v1/chat/completions", timeout=30, trusted=None, **body):
    """Return (status, body) of a request; 0 without a complete answer. trusted: file of a certificate, for TLS."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "17*23?"}], **body}
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    if trusted:
        context = ssl.create_default_context(cafile=trusted)
        client = http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout, context=context)
    try:
        headers = {"Content-Type": "application/json", **({"Authorization": "Bearer " + key} if key else {})}
        client.request("POST", path, json.dumps(body), headers)
        answer = client.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        client.close()


class Load:
    """Streams from some clients until the end of the `with` statement: answers, [(status, complete)]."""

    timeout = 30

    def __init__(self, port, clients=4, key=lambda: "key-of-alice"):
        self.port, self.key, self.answers, self.stopped = port, key, [], threading.Event()
        self.threads = [threading.Thread(target=self.run) for _number in range(clients)]

    def run(self):
        while not self.stopped.is_set():
            self.send(self.port)

    def send(self, port):
        status, answer = post(port, self.key(), stream=True, timeout=self.timeout)
        self.answers.append((status, answer.rstrip().endswith(b"[DONE]"), answer[-200:]))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *unused):
        self.stopped.set()
        for thread in self.threads:
            thread.join(60)

    def failed(self):
        return [one for one in self.answers if one[:2] != (200, True)]


@contextlib.contextmanager
def served(folder, ports, host="node-1", entry=None, variables=(), **settings):
    """Run the proxy in front of these ports and return it, with its port as `port`."""
    entries = [
        plan_entry(port, "server-%d" % number, host=host, bind="0.0.0.0", **(entry or {}))
        for number, port in enumerate(ports)
    ]
    port, metrics = free_port(), free_port()
    given = {"endpoint_address": "127.0.0.1", "endpoint_port": port, "endpoint_metrics_port": metrics}
    given.update({"endpoint_keys": KEYS, **CHECKED, **settings})

    def render(other=variables, **changes):
        found = {host: {"ansible_host": "127.0.0.1", **dict(other)}}
        return proxy.rendered(folder, [(entries, DEPLOYMENT)], found, **{**given, **changes})

    path = render()
    proxy.check(path)
    with proxy.Proxy(path) as running:
        running.port, running.metrics, running.render = port, metrics, render
        yield running


@pytest.fixture
def engines():
    """Four engines; each stream waits a second after its headers."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ScriptedEngine([Fault("buffer", value=1.0)])) for _number in range(4)]


@pytest.fixture
def running(tmp_path, engines):
    with served(tmp_path, [engine.port for engine in engines], endpoint_max_body=65536) as found:
        yield found


def test_answers_of_the_endpoint_itself(running, engines):
    status, answer = post(running.port)
    assert (status, json.loads(answer)["choices"][0]["message"]["content"]) == (200, "391")
    for key in ("", "key-of-carol", "Bearer key-of-alice"):
        assert post(running.port, key)[0] == 401
    status, answer = post(running.port, model="gpt-5")
    assert (status, json.loads(answer)["error"]["code"]) == (404, 404)
    assert post(running.port, path="/invocations")[0] == 404
    assert post(running.port, path="/v1/../invocations")[0] == 404
    nested = [{"role": "user", "content": '17*23? "model": "x"'}]
    assert post(running.port, metadata={"model": "x"}, messages=nested)[0] == 200
    status, answer = post(running.port, messages=[{"role": "user", "content": "x" * 70000}])
    assert (status, json.loads(answer)["error"]["code"]) == (413, 413)
    assert post(running.port, messages=[{"role": "user", "content": "x" * 60000}])[0] == 200
    status, answer = post(running.port, path="/v1/responses", messages=None, input="17*23?")
    assert (status, json.loads(answer)["object"]) == (200, "response")
    assert all("Authorization" not in headers for one in engines for *_rest, headers in one.requests)


def test_a_chunked_body_above_the_buffer(running):
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 200000}], "model": MODEL}).encode()
    with contextlib.suppress(OSError):  # the answer may be earlier than the end of the request
        headers = {"Authorization": "Bearer key-of-alice", "Transfer-Encoding": "chunked"}
        parts = iter([body[:1000], body[1000:]])
        client.request("POST", "/v1/chat/completions", parts, headers, encode_chunked=True)
    assert client.getresponse().status == 413


def test_models_metrics_and_health(running, engines):
    def get(port, path, **headers):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        client.request("GET", path, headers=headers)
        answer = client.getresponse()
        return answer.status, answer.read().decode()

    status, answer = get(running.port, "/v1/models", Authorization="Bearer key-of-bob")
    assert (status, [one["id"] for one in json.loads(answer)["data"]]) == (200, [MODEL])
    assert get(running.port, "/v1/models")[0] == 401
    assert get(running.port, "/metrics", Authorization="Bearer key-of-bob")[0] == 404
    assert "haproxy_server_status" in get(running.metrics, "/metrics")[1]
    assert get(running.port, "/health")[0] == 200
    assert oct((running.path.parent / "admin.sock").stat().st_mode & 0o777) == "0o660"
    for engine in engines:
        engine.die()
    wait_until(lambda: get(running.port, "/health")[0] == 503, 20)
    status, answer = post(running.port)
    assert (status, json.loads(answer)["error"]["type"]) == (503, "server_error")


def test_the_rate_limit_of_a_key(tmp_path, engines):
    limits = {"endpoint_rate_limit": 3, "endpoint_rate_limits": {"bob": 0}}
    with served(tmp_path, [engines[0].port], **limits) as running:
        assert [post(running.port)[0] for _number in range(4)] == [200, 200, 200, 429]
        assert {post(running.port, "key-of-bob")[0] for _number in range(5)} == {200}


def test_the_key_of_the_servers(tmp_path):
    secret = {"secrets": {"VLLM_API_KEY": "fleet_api_key"}}
    with ScriptedEngine(api_key="key-of-servers") as engine:
        variables = {"fleet_api_key": ["key-of-servers", "old"]}
        with served(tmp_path, [engine.port], entry=secret, variables=variables) as running:
            wait_until(lambda: engine.bodies("/v1/completions"), 10)
            assert post(running.port)[0] == 200
            assert post(running.port, "key-of-servers")[0] == 401
            time.sleep(1)
            assert set(running.states().values()) - {"no"} == {"UP"}
            assert "key-of-servers" not in running.path.read_text()


def test_tls(tmp_path, engines):
    chain, key = certificates.made()
    (tmp_path / "tls.pem").write_text(chain + key)
    (tmp_path / "ca.pem").write_text(chain)
    (tmp_path / "other.pem").write_text(certificates.made()[0])
    with served(tmp_path, [engines[0].port]) as running:
        assert post(running.port, trusted=tmp_path / "ca.pem")[0] == 200
        assert b"CERTIFICATE_VERIFY_FAILED" in post(running.port, trusted=tmp_path / "other.pem")[1]
        assert post(running.port)[0] == 0  # HTTP


def test_requests_that_begin_alike_have_one_server(tmp_path, engines):
    def asked(word, number):
        system = {"role": "system", "content": "Be brief."}
        turns = [{"role": "user", "content": word}, {"role": "user", "content": "%d?" % number}]
        assert post(running.port, messages=[system, *turns])[0] == 200
        bodies = [one.bodies("/v1/chat/completions") for one in engines]  # HAProxy's checks too
        return next(at for at, seen in enumerate(bodies) if any(body["messages"] == [system, *turns] for body in seen))

    # HAProxy may count a request that has just ended, so the factor leaves room for one
    given = {"endpoint_balance": "prefix", "endpoint_balance_factor": 1000}
    with served(tmp_path, [engine.port for engine in engines], **given) as running:
        found = [{asked("conversation %d" % word, number) for number in range(3)} for word in range(12)]
    assert {len(servers) for servers in found} == {1}
    assert len(set.union(*found)) > 1


def test_a_wedged_server_leaves_and_returns(running, engines):
    def state():
        return running.states()["model.%s/node-1.server-0" % MODEL]

    wait_until(lambda: engines[0].bodies("/v1/completions"), 10)
    engines[0].seconds = 100  # /health still answers
    began = time.monotonic()
    wait_until(lambda: state() == "DOWN", 20)
    assert time.monotonic() - began > 3.5  # after two checks
    running.reload()
    assert state() == "DOWN"
    before = len(engines[0].bodies("/v1/chat/completions"))
    assert {post(running.port, timeout=5)[0] for _number in range(4)} == {200}
    assert len(engines[0].bodies("/v1/chat/completions")) == before
    engines[0].seconds = 0
    wait_until(lambda: state() == "UP", 20)


def test_keys_change_under_load(running):
    current = ["key-of-alice"]
    with Load(running.port, key=lambda: current[0]) as load:
        time.sleep(1)
        running.render(endpoint_keys={"alice": ["new-key", "key-of-alice"]})
        running.reload()
        current[0] = "new-key"
        time.sleep(1.5)  # streams of the old key end
        running.render(endpoint_keys={"alice": "new-key"})
        running.reload()
        time.sleep(1)
        assert post(running.port)[0] == 401
    assert len(load.answers) > 8 and load.failed() == []
    log = running.path.with_suffix(".log").read_text()
    assert "alice" in log and "key-of" not in log and "new-key" not in log
    assert "key-of" not in running.path.read_text() + (running.path.parent / "keys.map").read_text()


def test_a_killed_server_fails_at_most_its_own_streams(tmp_path, engines):
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(Path(proxy.__file__).parent)}
    command = [sys.executable, "-c", ENGINE % port]
    victim = subprocess.Popen(command, env=environment)
    try:
        wait_until(lambda: post(port)[0] == 200, 20)
        with served(tmp_path, [port, engines[0].port, engines[1].port]) as running, Load(running.port, 6) as load:
            wait_until(lambda: len(load.answers) > 20, 30)
            victim.kill()
            time.sleep(3)
        assert len(load.failed()) <= 6
        assert load.answers[-1][:2] == (200, True)
    finally:
        victim.kill()
        victim.wait()


def test_maintenance_of_a_host(tmp_path, engines):
    names, ports = {"arguments": {"served-model-name": [MODEL, "gpt"]}}, [engine.port for engine in engines]
    with served(tmp_path, ports, entry=names, endpoint_alias="gpt") as running:
        assert states_of(running) == {"UP"}
        running.render({"fleet_maintenance": True})
        running.reload()
        assert states_of(running) == {"MAINT"}
        assert post(running.port)[0] == 503
        assert running.admit("drain", "node-1.server-0") == running.admit("ready", "node-1.server-0") == ""
        assert states_of(running) == {"MAINT"}
        running.render()
        running.reload()
        wait_until(lambda: states_of(running) == {"UP"}, 20)
        assert post(running.port)[0] == 200
        # of the model and of the alias; a reload keeps it
        assert running.admit("drain", "node-1.server-0").count(" state drain") == 2
        running.reload()
        assert states_of(running) == {"UP", "DRAIN"}
        running.admit("ready", "node-1.server-0")
        assert states_of(running) == {"UP"}


def states_of(running):
    return set(running.states().values()) - {"no"}
