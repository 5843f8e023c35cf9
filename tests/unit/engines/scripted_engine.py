# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An OpenAI-compatible server that answers as gpt-oss does, or misbehaves in one of the ways that engines were seen to.

It proves nothing about any engine: it is there so that every failure has a test.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import itertools
import json
import re
import socket
import struct
import sys
import threading
import time

PORTS = range(18200, 18300)
ADDRESS = "127.0.0.1"
LONG = 24  # events of a stream that shows whether it is buffered
REASONING = "17*20 is 340 and 17*3 is 51, together 391."
CALLS = itertools.count(1)
# {fault: (the status, the message of the error)}
ERRORS = {
    "vocab-missing": (500, "Error in harmony chat completion: error downloading or loading vocab file"),
    "engine-dead": (503, "EngineDeadError: EngineCore encountered an issue."),
}
# {fault: (the content of answers, finish_reason)}
CONTENTS = {"length": (None, "length"), "endless": ("391 391 391", "length")}
TOOL_CALL = {"id": "call-0", "type": "function", "function": {"name": "get_system_health", "arguments": "{}"}}


class Fault:
    """What a server does wrong, or otherwise, with some requests.

    kind: see _Handler.spoil() and the places of hit(); value: what the kind wants. where: words that the request must
    have, of chat, responses, stream, whole, tools, text, after-tool, weather, system, developer, turns, second, count,
    exact, stop, none, required, named, kept, long, cold (a temperature other than 1), bare (no max_tokens), health,
    models. when: always, late (the first LATE requests are served well),
    together (only those that `together` of the engine holds), once, late-once, together-once (the first such request
    alone).
    """

    def __init__(self, kind, where="", when="always", value=None):
        self.kind = kind
        self.where = frozenset(where.split())
        self.when = when
        self.value = value

    def __repr__(self):
        return " ".join(filter(None, (self.kind, *sorted(self.where), self.when if self.when != "always" else "",
                                      "" if self.value is None else repr(self.value)[:30])))  # fmt: skip


CHANGES = ("say", "insert", "finish", "reasoning", "call", "arguments", "call-keys", "twice", "swap", "message")
LATE = 51  # POST requests; the sequence has a few more
_HELD = []  # sockets that keep a port from other test runs: bound without listening, so connections are refused


def hold(port):
    """Take a port without listening on it, until this process ends. OSError where somebody has it."""
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        # or a server that reuses addresses could still have it
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        held.close()
        raise
    _HELD.append(held)


def free_port():
    """A port that nothing listens on, and nothing will."""
    for port in reversed(PORTS):
        with contextlib.suppress(OSError):
            hold(port)
            return port
    raise RuntimeError("all ports of %s are taken" % PORTS)


@dataclasses.dataclass(eq=False)
class ScriptedEngine:
    """A server on 127.0.0.1 for a `with` statement.

    faults: names of what it does wrong, see the methods of _Handler; listed: ids of /v1/models; pages: {path: text or
    function without arguments} for GET; context: tokens, enforced always, and told in /v1/models by the name
    tells_context, if there is one;
    effort: which request parameter it knows. together: (number, function): a POST for whose body the function is true
    is answered when so many requests are there at once. requests: [(method, path, body, headers)] as they came.
    """

    faults: tuple = ()
    model: str = "gpt-oss-120b"
    listed: list = None
    reasoning_field: str = "reasoning"
    effort: str = "reasoning_effort"
    context: int = None
    tells_context: str = "max_model_len"
    pages: dict = None
    seconds: float = 0.0
    api_key: str = None
    together: tuple = None

    def __post_init__(self):
        self.faults = frozenset((self.faults,) if isinstance(self.faults, str) else self.faults)
        self.listed = [self.model] if self.listed is None else self.listed
        self.pages = dict(self.pages or {})
        self.requests, self.busy = [], 0
        self.done = []  # Faults that happen once and have
        self.held = []  # the questions that `together` brought together
        self.lock, self.stopped = threading.Condition(), threading.Event()

    def __enter__(self):
        for port in PORTS:
            try:
                self._server = _Server((ADDRESS, port), _Handler)
                break
            except OSError:
                continue
        else:
            raise RuntimeError("all ports of %s are taken" % PORTS)
        self.port = port
        self._server.engine = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self.stop()

    def stop(self):
        """Close the port; a second call does nothing."""
        self.stopped.set()
        if self._server:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()

    def die(self):
        """Close the port and keep it from others."""
        self.stop()
        hold(self.port)

    def bodies(self, path):
        """The bodies of the POST requests to `path`, in their order."""
        return [body for method, where, body, _headers in self.requests if method == "POST" and where == path]


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        """A client that has gone is what many tests are about; anything else is a mistake here."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as servers do; else a kept connection costs 40 ms for each answer

    @property
    def engine(self):
        return self.server.engine

    def has(self, fault):
        return fault in self.engine.faults

    def log_message(self, *unused):
        """Tests look at requests, not at a log."""

    tags = frozenset()
    number = 0
    held = False

    def hit(self, kind, tags=None):
        """The Fault of this kind that applies to this request, or None."""
        tags = self.tags if tags is None else tags
        for fault in self.engine.faults:
            if not isinstance(fault, Fault) or fault.kind != kind or not fault.where <= tags:
                continue
            late, together = fault.when.startswith("late"), fault.when.startswith("together")
            if (late and self.number <= LATE) or (together and not self.held):
                continue
            if fault.when.endswith("once"):
                with self.engine.lock:
                    if fault in self.engine.done:
                        continue
                    self.engine.done.append(fault)
            return fault
        return None

    def changed(self, kind, value, *more):
        """The value after the Fault of this kind, whose own value is a function."""
        fault = self.hit(kind)
        return fault.value(value, *more) if fault else value

    def refuse(self, status, headers=()):
        data = b'{"error": {"message": "refused"}}'
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = True

    # -- sending -------------------------------------------------------------------------------------------------------

    def send_text(self, status, text, content_type="application/json", claim=0):
        data = text.encode("utf-8")
        if status == 200:
            data = self.changed("bytes", data)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        miscounted = self.hit("claim")
        claim = miscounted.value if miscounted else claim
        if not self.has("no-length"):
            self.send_header("Content-Length", str(len(data) + claim))
        if self.has("closes") or self.has("no-length"):
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)
        self.close_connection = self.close_connection or claim > 0

    def send_json(self, status, value):
        self.send_text(status, json.dumps(value))

    def send_error_json(self, status, message):
        self.send_json(status, {"error": {"message": message, "code": status}})

    def drop(self):
        """Close with a reset and no answer."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    # -- receiving -----------------------------------------------------------------------------------------------------

    def do_GET(self):
        self.engine.requests.append(("GET", self.path, None, dict(self.headers)))
        refused = self.hit("status", {"models" if self.path == "/v1/models" else "health"})
        if refused:
            self.refuse(*refused.value)
        elif self.has("not-http"):
            self.wfile.write(b"SSH-2.0-OpenSSH_9.2p1\r\n")
            self.close_connection = True
        elif self.path in self.engine.pages:
            page = self.engine.pages[self.path]
            self.send_text(200, page() if callable(page) else page, "text/plain")
        elif self.path == "/health":
            self.health()
        elif self.path.startswith("/v1") and not self.admitted():
            self.send_error_json(401, "Unauthorized")
        elif self.path == "/v1/models":
            self.models()
        else:
            self.send_json(404, {"detail": "Not Found"})

    def admitted(self, body=None):
        key = self.headers.get("Authorization", "")
        opened = self.hit("open", tags_of(self.path, body) if body else {"models"})
        if opened and (opened.value is None or opened.value(key)):
            return True
        return not self.engine.api_key or key == "Bearer " + self.engine.api_key

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        engine = self.engine
        engine.requests.append(("POST", self.path, body, dict(self.headers)))
        if not self.admitted(body):
            self.send_error_json(401, "Unauthorized")
            return
        self.held = bool(engine.together and engine.together[1](body))
        with engine.lock:
            engine.busy += 1  # /metrics of test nodes has it
            if self.held:
                engine.held.append(question_of(body))
                engine.lock.notify_all()
                engine.lock.wait_for(lambda: len(engine.held) >= engine.together[0], 60)
        try:
            self.respond(body)
        finally:
            with engine.lock:
                engine.busy -= 1

    def respond(self, body):
        engine = self.engine
        kept = {"kept"} if self.headers.get("Connection") == "keep-alive" else set()
        self.tags = tags_of(self.path, body) | kept
        self.number = len([one for one in engine.requests if one[0] == "POST"])
        refused, unknown = self.hit("status"), self.hit("refuse")
        if refused:
            self.refuse(*refused.value)
            return
        if unknown:
            self.send_error_json(400, unknown.value)
            return
        time.sleep(engine.seconds)
        if self.path == "/v1/chat/completions":
            self.chat(body)
        elif self.path == "/v1/responses":
            self.responses_api(body)
        elif self.path == "/v1/completions":
            choice = {"index": 0, "text": "Paris.", "finish_reason": "stop"}
            self.send_json(200, {"object": "text_completion", "model": body.get("model"), "choices": [choice]})
        elif self.path == "/v1/embeddings":
            self.embeddings(body)
        else:
            self.send_json(404, {"detail": "Not Found"})

    def embeddings(self, body):
        """A vector of the letters in each text."""
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        vectors = [[text.lower().count(letter) + 0.5 for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts]
        vectors = enumerate(self.changed("vectors", vectors))
        data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in vectors]
        self.send_json(200, {"object": "list", "model": body["model"], "data": data})

    def health(self):
        if self.has("health-503"):
            self.send_text(503, "LLM is unavailable. Please check the server logs for more details.", "text/plain")
        elif self.has("health-204"):
            self.send_response(204)
            self.end_headers()
        else:
            self.send_text(200, "")

    def models(self):
        if self.has("models-odd"):
            self.send_json(200, ["gpt-oss-120b"])
            return
        cards = [{"id": name, "object": "model"} for name in self.engine.listed]
        if self.engine.context and self.engine.tells_context:
            cards[0][self.engine.tells_context] = self.engine.context
        self.send_json(200, {"object": "list", "data": cards})

    def responses_api(self, body):
        if self.has("no-responses"):
            self.send_json(404, {"detail": "Not Found"})
            return
        said = {"role": "assistant", "content": know(body["input"]), "reasoning": REASONING}
        if body.get("tools") and not self.hit("no-call"):
            tools = [{"function": tool} for tool in body["tools"]]
            said.update(content="", tool_calls=[call_for(body["input"], tools)])
        said, _finish = self.spoil(body, said, "stop")
        text, calls = said["content"] or "", said.get("tool_calls") or ()
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
        output = [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": said["reasoning"]}]}]
        output += [message] if text or not calls else []
        output += [{"type": "function_call", "call_id": call["id"], **call["function"]} for call in calls]
        answer = {"object": "response", "status": "completed", "output": output}
        fields = self.hit("fields")
        answer.update(fields.value if fields else {})
        if not body.get("stream"):
            self.send_json(200, answer)
            return
        pieces = [text[start : start + 7] for start in range(0, len(text), 7)]
        events = [{"type": "response.created", "response": {"status": "in_progress"}}]
        events += [{"type": "response.output_text.delta", "delta": piece} for piece in pieces]
        events.append({"type": "response.completed", "response": answer})
        events = self.changed("chunks", events)
        self.begin_stream()
        self.send_stream(["event: %s\ndata: %s\n\n" % (one.get("type"), json.dumps(one)) for one in events])

    # -- chat ----------------------------------------------------------------------------------------------------------

    def chat(self, body):
        engine = self.engine
        needed, limit = 80 + body.get("max_tokens", 16), engine.context
        too_long = "This model's maximum context length is %s tokens. However, you requested %d tokens."
        unknown = "reasoning_effort: Extra inputs are not permitted"
        errors = (
            *((self.has(fault), *answer) for fault, answer in ERRORS.items()),
            (self.has("strict") and "reasoning_effort" in body, 400, unknown),
            (body.get("model") not in engine.listed, 404, "The model `%s` does not exist." % body.get("model")),
            (limit is not None and needed > limit, 400, too_long % (limit, needed)),
        )
        for wrong, status, message in errors:
            if wrong:
                self.send_error_json(status, message)
                return
        if self.has("dies-at-tools") and body.get("tools"):
            self.engine.die()
            self.drop()
        elif self.has("reset"):
            self.drop()
        elif self.has("hangs") or (self.has("hangs-later") and len(engine.bodies(self.path)) > 2):
            self.engine.stopped.wait(600)
            self.drop()
        elif self.has("drips"):
            self.drip()
        elif self.has("not-json"):
            self.send_text(200, "<html>It works!</html>", "text/html")
        elif self.has("cut"):
            self.send_text(200, '{"choices": [', claim=100)
        elif body.get("stream"):
            self.stream(body)
        else:
            self.send_json(200, self.completion(body))

    def drip(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _byte in range(1000):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.05)

    def answer(self, body):
        """(message, finish_reason) of what the model says to `body`."""
        field = self.engine.reasoning_field
        roles = [message["role"] for message in body["messages"]]
        question = question_of(body)
        last = roles[-1]
        told = body.get("chat_template_args", {}) if self.engine.effort == "chat_template_args" else body
        effort = told.get("reasoning_effort")
        reasoning = REASONING * ({"low": 1, "high": 6}.get(effort, 2) if not self.has("effort-ignored") else 2)
        message = {"role": "assistant", "content": know(question, body["messages"]), field: reasoning}
        finish = "stop"
        if "response_format" in body and not self.has("schema-ignored"):
            message["content"] = json.dumps({"number": int(message["content"])})
        if self.has("wrong-answer"):
            message["content"] += "0"
        for fault, said in CONTENTS.items():
            if self.has(fault):
                message["content"], finish = said
        if self.has("leak-in-new-york") and "New York" in question:
            message["content"] = "<|channel|>final<|message|>In the north-east."
        if last == "tool":
            message["content"] = "All is well: status ok."
            report = re.search(r'"report_number": ?(\d+)', body["messages"][-1]["content"])
            once = self.hit("call-again")
            if report:
                message["content"] = "It will be sunny, says report %s." % report.group(1)
            if once:
                message.update(content=None, tool_calls=[call_for(question, body["tools"])])
                finish = "tool_calls"
        elif self.calls(body, question):
            message.update(content=None, tool_calls=[call_for(question, body["tools"])])
            finish = "tool_calls"
            if self.hit("other-tool-first"):
                message["tool_calls"] = [call_for("", body["tools"])]
            if self.has("drop-tool-call"):
                del message["tool_calls"]
                finish = "stop"
        message, finish = self.spoil(body, message, finish)
        stop = (body.get("stop") or [None])[0]
        if stop and message["content"] and not self.hit("say", {"stop"}):
            message["content"] = message["content"].partition(stop)[0] + (stop if self.has("stop-kept") else "")
        return message, finish

    def calls(self, body, question):
        """Whether the model answers with a call of a tool."""
        first = self.has("words-first") or (self.has("stream-words-first") and body.get("stream"))
        words = self.has("words") or (first and "quick check" in question)
        return body.get("tools") and body.get("tool_choice") != "none" and not words

    def spoil(self, body, message, finish):
        """(message, finish_reason) after the Faults that change them."""
        content = message["content"]
        for kind in CHANGES:
            fault = self.hit(kind)
            if fault is None:
                continue
            value = fault.value
            calls = message.get("tool_calls") or []
            if kind == "say" and (content or "tools" in fault.where):
                message["content"] = value(content or "") if callable(value) else value
                if "tools" in fault.where:
                    message.pop("tool_calls", None)
                    finish = "stop"
            elif kind == "insert" and content:
                message["content"] = "The answer is%s %s" % (value, content)
            elif kind == "finish":
                finish = value
            elif kind == "reasoning":
                for field in ("reasoning", "reasoning_content"):
                    if field in message:
                        message[field] = value
            elif kind == "call":
                message["tool_calls"] = [json.loads(json.dumps(TOOL_CALL))]
            elif kind == "arguments":
                for function in (call["function"] for call in calls):
                    function["arguments"] = value(json.loads(function["arguments"])) if callable(value) else value
            elif kind == "call-keys":
                for call in calls:
                    call.update(value)
            elif kind == "twice":
                message["tool_calls"] = calls * 2
            elif kind == "message":
                message, finish = value(message, finish, body)
            elif kind == "swap" and self.held:
                held = self.engine.held
                message["content"] = know(held[(held.index(question_of(body)) + value) % len(held)])
        return message, finish

    def completion(self, body):
        message, finish = self.answer(body)
        tokens = {"completion_tokens": len(str(message)) // 4}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        value = {"object": "chat.completion", "model": body["model"], "choices": [choice], "usage": tokens}
        return self.changed("json", value, body)

    def stream(self, body):
        message, finish = self.answer(body)
        self.begin_stream()
        held = self.hit("buffer")
        if held:
            self.engine.stopped.wait(held.value)
        texts = list(self.extra("before"))
        chunks = []
        for delta, reason in self.changed("deltas", list(self.deltas(message, finish))):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            chunks.append({"object": "chat.completion.chunk", "choices": [choice]})
            if self.has("stream-cut"):
                self.raw(self.formed(json.dumps(chunks[0])).encode())
                self.drop()
                return
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 9, "completion_tokens": len(str(message)) // 4}
            chunks.append({"object": "chat.completion.chunk", "choices": [], "usage": usage})
        texts += [self.formed(json.dumps(chunk)) for chunk in self.changed("chunks", chunks)]
        texts += self.extra("after")
        if not self.hit("no-done"):
            texts.append(self.formed("[DONE]"))
        self.send_stream(texts)

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_stream(self, texts):
        """Events as they are; kept: nothing of one is sent before the next."""
        blocks = [text.encode("utf-8", "surrogatepass") for text in texts]
        changed = self.hit("sse")
        if changed:
            blocks = changed.value(b"".join(blocks))
            blocks = blocks if isinstance(blocks, list) else [blocks]
        if self.hit("buffer"):  # one write: pieces would arrive apart on a busy machine
            blocks = [b"".join(blocks)]
        pause = 0.0005 if len(blocks) >= LONG else 0
        for block in blocks:
            self.raw(block)
            if pause:
                time.sleep(pause)
        self.wfile.write(b"0\r\n\r\n")

    def deltas(self, message, finish):
        """[(delta, finish_reason)] that make up `message`, cut so that tokens and names fall apart."""
        yield {"role": "assistant"}, None
        for key in (self.engine.reasoning_field, "content"):
            text = message.get(key) or ""
            for start in range(0, len(text), 7):
                yield {key: text[start : start + 7]}, None
        for call in message.get("tool_calls") or []:
            function = call["function"]
            yield {"tool_calls": [{"index": 0, "id": call["id"], "function": {"name": function["name"]}}]}, None
            for letter in function["arguments"]:
                yield {"tool_calls": [{"index": 0, "function": {"arguments": letter}}]}, None
        yield {}, finish

    def extra(self, kind):
        """What a Fault writes into the stream as it is, before or after the answer."""
        fault = self.hit(kind)
        return [fault.value] if fault else []

    def formed(self, data):
        form = self.hit("form")
        return (form.value if form else "data: %s\n\n") % data

    def raw(self, chunk):
        if chunk:  # an empty one would be the end
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()


def question_of(body):
    """What the user asked last."""
    for key in ("input", "prompt"):
        if key in body:
            return body[key] if isinstance(body[key], str) else body[key][-1]
    return [message["content"] for message in body["messages"] if message["role"] == "user"][-1]


def tags_of(path, body):
    """The words for a request that Faults name."""
    tags = {"responses" if path == "/v1/responses" else "chat", "stream" if body.get("stream") else "whole"}
    tags.add("tools" if body.get("tools") else "text")
    messages = body.get("messages") or []
    roles = [message["role"] for message in messages]
    tags.update(word for word, given in (
        ("after-tool", roles[-1:] == ["tool"]),
        ("developer", "developer" in roles),
        ("turns", "assistant" in roles and "tool" not in roles),
        ("second", "tool" in roles and roles.count("user") > 1),
        ("count", question_of(body).startswith("Count ")),
        ("exact", question_of(body).startswith("Repeat this text exactly")),
        ("stop", "stop" in body),
        (body.get("tool_choice") if isinstance(body.get("tool_choice"), str) else "named", "tool_choice" in body),
        ("weather", "weather" in question_of(body)),
        ("system", "system" in roles),
        ("long", len(question_of(body)) > 4000),
        ("cold", body.get("temperature", 1) != 1),
        ("bare", "max_tokens" not in body and "max_output_tokens" not in body),
        ("low", body.get("reasoning_effort") == "low"),
    ) if given)  # fmt: skip
    return frozenset(tags)


def know(question, messages=()):
    """What the model knows: sums, what stands in its prompt, and how to count."""
    order = next((one["content"] for one in messages if one["role"] in ("system", "developer")), "")
    if question.startswith("Which number did you choose"):
        return [one["content"] for one in messages if one["role"] == "assistant"][-1]
    if question.startswith("Repeat this text exactly"):
        return question.partition(": ")[2]
    word = re.search(r"single word (\w+)", order)
    if word:
        return word.group(1)
    box = re.search(r"in box (\d+)\?", question)
    if box:
        return re.search(r"number in box %s is (\d+)" % box.group(1), question).group(1)
    if question.startswith("Count "):
        return "\n".join(map(str, range(1, 121)))
    product = re.search(r"(\d+)\*(\d+)", question)
    return str(int(product.group(1)) * int(product.group(2))) if product else "391"


def call_for(question, tools):
    """The call that answers the question with one of the tools."""
    call = dict(json.loads(json.dumps(TOOL_CALL)), id="call-%d" % next(CALLS))
    weather = re.search(r"weather be in (.+) for the next (\d+) days", question)
    if weather and any(tool["function"]["name"] == "get_weather" for tool in tools):
        arguments = {"city": weather.group(1), "days": int(weather.group(2))}
        call["function"] = {"name": "get_weather", "arguments": json.dumps(arguments)}
    return call
