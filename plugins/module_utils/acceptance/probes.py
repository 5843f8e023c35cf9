# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The acceptance sequence of one server: each probe sends something, judges what comes back and has its own verdict."""

from __future__ import annotations

import concurrent.futures
import json
import re
import time

from ansible_collections.inference.fleet.plugins.module_utils import http_client
from ansible_collections.inference.fleet.plugins.module_utils.acceptance import causes, chat, workers

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
SENT_LIMIT = 400  # characters of a request in a report
GOT_LIMIT = 600  # characters of an answer behind a failing probe
STREAM_TAIL = 300  # of a stream, whose beginning says little
GOT_SHORT = 200  # characters of an answer behind a passing one
WARM_UP_FACTOR = 5  # the first completion compiles kernels and fills caches
TOTAL_FACTOR = 15  # of a server's whole sequence, in timeouts
MAX_TOKENS = 1024  # gpt-oss thinks before it answers: with few tokens the content is null
PROMPT_TOKENS = 256  # what the longest prompt here takes: harmony's preamble, a tool, a question
CONCURRENT = 4
QUICK = ("model-id", "completion")
FULL = (
    "alive", "census", "model-id", "warm-up", "chat", "harmony-residue", "reasoning", "effort", "tool-call",
    "tool-round-trip", "responses", "streaming", "concurrent", "disaggregation",
)  # fmt: skip
DISAGGREGATED = ("census", "disaggregation")  # only where a frontend has prefill or decode workers beside it

ARITHMETIC = "What is 17*23? Answer with the number."
PRODUCT = re.compile(r"(?<!\d)391(?!\d)")
WARM_UP = "Say hello in one short sentence."
EFFORT_QUESTIONS = (
    "Which numbers between 1 and 60 are the sum of two squares in two different ways?",
    "A farmer has hens and rabbits, 35 heads and 94 legs together. How many of each? Check your answer.",
)
CONCURRENT_QUESTIONS = (ARITHMETIC, "Name a prime number above 50.", "What is the capital of France?", "How are you?")
# Question, tool and result of the Dynamo guide's tool-calling section.
TOOL_QUESTION = "Hey, quick check: is everything up and running?"
TOOL_QUESTION_AGAIN = "Call get_system_health now and tell me what it says."
TOOL_NAME = "get_system_health"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL_NAME,
            "description": (
                "Returns the current health status of the LLM runtime—use before critical operations to verify the "
                "service is live."
            ),
            "parameters": {"type": "object", "properties": {}},
        },
    }
]
TOOL_RESULT = '{"status":"ok","uptime_seconds":372045}'
MENTIONS = re.compile(r"(?i)\bok\b|372[ ,.]?045|103 h|4\.3 d|4 d|health|running|operational|green|smooth")


class Options:
    """What the caller wants.

    mode: full or quick; probes: the recipe's own [{name, path, body, expect}], checked; effort_parameter:
    reasoning_effort or chat_template_args; responses_api: whether /v1/responses must work; timeout: seconds a request;
    api_key: sent as a bearer token, or empty.
    """

    def __init__(
        self,
        mode="full",
        probes=(),
        effort_parameter="reasoning_effort",
        responses_api=True,
        timeout=120,
        api_key="",
    ):
        self.mode = mode
        self.probes = list(probes)
        self.effort_parameter = effort_parameter
        self.responses_api = responses_api
        self.timeout = timeout
        self.api_key = api_key


class Failed(Exception):
    """The probe did not pass: what came back, and what usually causes it."""

    def __init__(self, got, cause):
        super().__init__(cause)
        self.got = got
        self.cause = cause


class NotMeasured(Exception):
    """The probe cannot tell here; the reason goes into the verdict's cause."""

    def __init__(self, cause, got=None):
        super().__init__(cause)
        self.cause = cause
        self.got = got


class OutOfTime(Exception):
    """The time of the whole sequence is over."""


def is_standin(model_id):
    """Whether the model is a stand-in that answers in form only."""
    return "standin" in (model_id or "").lower().replace("-", "")


def probe_names(beside, options):
    """The names of a verdict's probes, in their order; beside: the workers behind the server, [] for most."""
    names = QUICK if options.mode == "quick" else FULL
    names = [name for name in names if beside or name not in DISAGGREGATED]
    return names + ([probe["name"] for probe in options.probes] if options.mode == "full" else [])


class Acceptance:
    """Runs the sequence against one server. Use it once: results() sends requests and returns the probes' verdicts."""

    def __init__(self, entry, beside, options):
        self.entry = entry
        self.workers = beside
        self.options = options
        self.url = http_client.base_url(entry["bind"], entry["port"])
        self.model = entry["model_id"]  # what requests name; what the server lists, once that is known
        self.listed = None  # the ids in /v1/models, once they are known
        self.standin = is_standin(entry["model_id"])
        self.max_tokens = MAX_TOKENS
        self.low = {}  # the parameter for little effort, once the effort probe has seen it work
        self.seen = []  # (probe, what was sent, Answer) that harmony-residue looks at
        self.chat_answer = self.chat_sent = None
        self.tool_call_made = None
        self.tool_question = TOOL_QUESTION
        self.counts = {}  # requests that each worker had handled before the first completion
        self._results = {}
        self._stopped = None
        self._name = None
        self._sent = None
        self._error = None
        self._timeouts = 0
        self._deadline = None

    def results(self):
        """[{name, ok, ms, sent, got, cause}] in the order of probe_names(); ms: milliseconds that the probe took."""
        self._deadline = time.monotonic() + TOTAL_FACTOR * self.options.timeout
        names = probe_names(self.workers, self.options)
        own = {probe["name"]: probe for probe in self.options.probes}
        for name in names:
            if name == "harmony-residue":
                continue  # looks at all answers, so it comes last and stands where it belongs
            if name in own:
                self._run(name, lambda probe=own[name]: self._own(probe))
            else:
                self._run(name, getattr(self, "_" + name.replace("-", "_")))
        if "harmony-residue" in names:
            self._run("harmony-residue", self._harmony_residue, always=True)
        return [self._results[name] for name in names]

    # -- running one probe ---------------------------------------------------------------------------------------------

    def _run(self, name, function, always=False):
        result = {"name": name, "ok": None, "ms": 0, "sent": None, "got": None, "cause": None}
        self._results[name] = result
        if self._stopped and not always:
            result["cause"] = "not run: %s failed" % self._stopped
            return
        self._name, self._sent, self._error = name, None, None
        started = time.monotonic()
        try:
            result["got"] = function()
            result["ok"] = True
        except NotMeasured as reason:
            result["cause"], result["got"] = reason.cause, reason.got
        except Failed as failure:
            result["ok"], result["got"], result["cause"] = False, failure.got, failure.cause
        except OutOfTime:
            result["ok"], result["got"] = False, "the sequence did not get through"
            result["cause"] = causes.too_slow(TOTAL_FACTOR * self.options.timeout, TOTAL_FACTOR)
            self._stopped = self._stopped or name
        result["ms"] = round((time.monotonic() - started) * 1000)
        result["sent"] = self._sent
        if result["ok"] is False:
            self._timeouts += self._error == "timeout"
            if self._error == "refused" or self._timeouts == 2 or name in ("warm-up", "completion"):
                self._stopped = self._stopped or name  # what comes after would only wait and fail for the same reason

    def _send(self, method, path, body=None, timeout=None, reader=http_client.request, base=None):
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        self._sent = "%s %s" % (method, path)
        if body is not None:
            self._sent += " " + compact(body)
        headers = {"Authorization": "Bearer " + self.options.api_key} if self.options.api_key else None
        timeout = timeout or self.options.timeout
        answer = reader(method, (base or self.url) + path, body, min(timeout, left), headers)
        self._error = (answer.response if isinstance(answer, http_client.Stream) else answer).error
        if self._error == "timeout" and left < timeout:
            raise OutOfTime  # the request was given less than its due
        return answer

    def _must_be(self, response, path, status=200):
        if response.error:
            raise Failed(response.describe(GOT_LIMIT), causes.transport_cause(response))
        if response.status != status:
            cause = causes.http_cause(response, path)
            if response.status == 404 and path == CHAT and self.listed == []:
                cause = causes.NO_MODELS
            if response.status in (401, 403):
                self._stopped = self._name  # the other requests would be refused as well
                cause = causes.API_KEY_REFUSED if self.options.api_key else cause
            raise Failed(response.describe(GOT_LIMIT), cause)
        return response

    def _body(self, question, **more):
        body = {"model": self.model, "messages": [{"role": "user", "content": question}]}
        body.update({"temperature": 1.0, "top_p": 1.0, "max_tokens": self.max_tokens})
        body.update(more)
        return body

    def _ask(self, body, timeout=None):
        """Send a chat completion; (Answer, Response). Fails unless a 200 with a message comes back."""
        response = self._must_be(self._send("POST", CHAT, body, timeout), CHAT)
        answer = chat.read_answer(response.json())
        if answer is None:
            raise Failed(response.describe(GOT_LIMIT), causes.SHAPE)
        self._look_at(answer)
        return answer, response

    def _look_at(self, answer):
        """Keep an answer for harmony-residue, with the request that brought it."""
        self.seen.append((self._name, self._sent, answer))

    @staticmethod
    def _finished(answer, got):
        """Fails unless the answer has content and the model ended it itself."""
        if not answer.content.strip():
            raise Failed(got, causes.LENGTH if answer.finish_reason == "length" else causes.EMPTY)
        if answer.finish_reason != "stop":
            raise Failed(got, causes.CUT_OFF if answer.finish_reason == "length" else causes.NOT_STOPPED)

    # -- the probes ----------------------------------------------------------------------------------------------------

    def _alive(self):
        path = self.entry["health"]["path"]
        response = self._send("GET", path)
        if response.error or response.status >= 500:
            self._stopped = "alive"
        return self._must_be(response, path).describe(GOT_SHORT)

    def _model_id(self):
        response = self._send("GET", "/v1/models")
        if response.error:
            self._stopped = "model-id"
        value = self._must_be(response, "/v1/models").json()
        if not isinstance(chat.dig(value, "data"), list):
            raise Failed(response.describe(GOT_LIMIT), causes.SHAPE)
        cards = chat.items_of(value["data"])
        listed = self.listed = [chat.text_of(card.get("id")) for card in cards]
        context = chat.dig(cards, 0, "max_model_len")
        if isinstance(context, int):
            self.max_tokens = max(16, min(MAX_TOKENS, context - PROMPT_TOKENS))
        if listed != [self.model]:
            cause = causes.model_cause(self.model, listed)
            if len(listed) == 1:  # the other probes can still tell whether it works under its own name
                self.model = listed[0]
            raise Failed(response.describe(GOT_LIMIT), cause)
        return "HTTP 200, lists %s%s" % (self.model, ", context %s" % context if context else "")

    def _warm_up(self):
        self.counts = self._counts()
        answer, response = self._ask(self._body(WARM_UP), WARM_UP_FACTOR * self.options.timeout)
        return "first completion after %d ms, finish_reason %s" % (response.ms, answer.finish_reason)

    def _chat(self):
        answer, response = self._ask(self._body(ARITHMETIC))
        self.chat_answer, self.chat_sent = answer, self._sent
        return self._judge_chat(answer, response)

    def _completion(self):
        answer, response = self._ask(self._body(ARITHMETIC))
        got = self._judge_chat(answer, response)
        self._no_residue(answer, "the answer")
        return got

    def _judge_chat(self, answer, response):
        got = response.describe(GOT_LIMIT)
        if "!!!!!!" in answer.content:
            raise Failed(got, causes.RESIDUE_EXCLAMATION)
        self._finished(answer, got)
        if PRODUCT.search(answer.content):
            return response.describe(GOT_SHORT)
        if self.standin:
            return "not 391, and a stand-in need not know it; " + response.describe(GOT_SHORT)
        raise Failed(got, causes.WRONG_ANSWER)

    def _no_residue(self, answer, whose):
        for where, text in answer.texts():
            found = causes.residue(text)
            if found:
                raise Failed("in the %s of %s: %s" % (where, whose, http_client.cut(found[0], GOT_SHORT)), found[1])

    def _harmony_residue(self):
        if not self.seen:
            raise NotMeasured("not run: no probe brought an answer to look at")
        for probe, sent, answer in self.seen:
            self._sent = sent
            self._no_residue(answer, "the answer to " + probe)
        self._sent = None
        return "none in %d answers" % len(self.seen)

    def _reasoning(self):
        if self.chat_answer is None:
            raise NotMeasured("not run: chat brought no answer")
        self._sent = self.chat_sent
        reasoning, content = self.chat_answer.reasoning, self.chat_answer.content.strip()
        if not reasoning:
            raise Failed(
                "neither reasoning nor reasoning_content in the answer to chat",
                causes.REASONING_FLAGS[causes.engine_of(self.entry)],
            )
        text = self.chat_answer.reasoning_text.strip()
        if len(text) > 20 and content.startswith(text):
            raise Failed(
                "the content begins with the reasoning: %s" % http_client.cut(content, GOT_SHORT),
                causes.REASONING_FLAGS[causes.engine_of(self.entry)],
            )
        got = "%s, %d characters" % (" and ".join(reasoning), len(text))
        expected = self.entry.get("reasoning_field")
        if expected and expected not in reasoning:
            got += " (the plan expects the name %s; this engine version uses the other)" % expected
        return got

    def _effort_body(self, level):
        if self.options.effort_parameter == "chat_template_args":
            return {"chat_template_args": {"reasoning_effort": level}}
        return {"reasoning_effort": level}

    def _effort(self):
        tried = []
        for question in EFFORT_QUESTIONS:
            low, _response = self._ask(self._body(question, **self._effort_body("low")))
            high, _response = self._ask(self._body(question, **self._effort_body("high")))
            unit, sizes = "characters", (low.length, high.length)
            if low.completion_tokens and high.completion_tokens:
                unit, sizes = "tokens", (low.completion_tokens, high.completion_tokens)
            tried.append("low %d, high %d %s" % (sizes[0], sizes[1], unit))
            self.low = self._effort_body("low")
            if sizes[1] > sizes[0]:
                return "; ".join(tried)
        if self.standin:
            raise NotMeasured("not measurable on a stand-in: it has not learned to think longer", "; ".join(tried))
        if low.finish_reason == "length":  # both are as long as the server lets them be
            raise Failed("; ".join(tried), causes.CUT_OFF if low.content.strip() else causes.LENGTH)
        raise Failed("; ".join(tried), causes.effort_cause(self.options.effort_parameter))

    def _tool_call(self):
        for question in (TOOL_QUESTION, TOOL_QUESTION_AGAIN):
            answer, response = self._ask(self._body(question, tools=TOOLS, **self.low))
            if not self._answered_instead(answer):
                break
        self._judge_tool_call(answer, response.describe(GOT_LIMIT))
        self.tool_call_made = answer.tool_calls[0]
        self.tool_question = question
        return response.describe(GOT_SHORT)

    @staticmethod
    def _answered_instead(answer):
        """The model chose to answer in words, which it may: that is worth a second, plainer question."""
        return bool(answer.content.strip()) and not answer.tool_calls and answer.finish_reason == "stop"

    def _judge_tool_call(self, answer, got):
        if not answer.tool_calls:
            if answer.finish_reason == "length":
                raise Failed(got, causes.CUT_OFF if answer.content.strip() else causes.LENGTH)
            if self._answered_instead(answer) and not causes.residue(answer.content):
                raise Failed(got, causes.NO_TOOL_CALL)
            raise Failed(got, causes.TOOL_FLAGS[causes.engine_of(self.entry)])
        call = answer.tool_calls[0]
        if call["name"] != TOOL_NAME:
            raise Failed(got, causes.TOOL_NAME)
        if chat.tool_arguments(call) is None:
            raise Failed(got, causes.TOOL_ARGUMENTS)
        if answer.finish_reason != "tool_calls":
            raise Failed(got, causes.TOOL_FINISH)

    def _tool_round_trip(self):
        if self.tool_call_made is None:
            raise NotMeasured("not run: tool-call brought no tool call")
        call = self.tool_call_made
        call_id = call["id"] or "call-1"
        function = {"name": call["name"], "arguments": call["arguments"]}
        body = self._body(self.tool_question, tools=TOOLS, **self.low)
        body["messages"] += [
            {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call_id, "content": TOOL_RESULT},
        ]
        answer, response = self._ask(body)
        self.seen.pop()  # judged here, so that harmony-residue does not report it a second time
        self._no_residue(answer, "the answer after the tool's result")
        self._finished(answer, response.describe(GOT_LIMIT))
        mention = "mentions the result" if MENTIONS.search(answer.content) else "does not mention the result"
        return "%s; %s" % (mention, response.describe(GOT_SHORT))

    def _responses(self):
        if not self.options.responses_api:
            raise NotMeasured("this engine has no /v1/responses (responses_api is false)")
        body = {"model": self.model, "input": ARITHMETIC, "max_output_tokens": self.max_tokens}
        response = self._must_be(self._send("POST", RESPONSES, body), RESPONSES)
        output = chat.items_of(chat.dig(response.json(), "output"))
        texts = [
            chat.text_of(part.get("text"))
            for item in output
            if item.get("type") == "message"
            for part in chat.items_of(item.get("content"))
        ]
        text = "".join(texts)
        if not text.strip():
            cause = causes.LENGTH if "max_output_tokens" in response.text and output else causes.NO_MESSAGE
            raise Failed(response.describe(GOT_LIMIT), cause)
        self._look_at(chat.Answer(content=text))
        return "output %s: %s" % (
            ", ".join(chat.text_of(item.get("type")) for item in output),
            http_client.cut(text, GOT_SHORT),
        )

    def _stream(self, body):
        """Send a streamed chat; (Answer, words for what came). Fails unless the stream is whole and without error."""
        stream = self._send("POST", CHAT, dict(body, stream=True), reader=http_client.stream)
        response = stream.response
        if response.error and not stream.events:
            self._must_be(response, CHAT)
        if response.error is None:
            self._must_be(response, CHAT)
        answer, error, first_ms = chat.read_stream(stream.events)
        words = "%d events, %s" % (
            len(stream.events), "no token" if first_ms is None else "first token after %d ms" % first_ms,
        )  # fmt: skip
        got = "%s, %d characters of content, finish_reason %s; the stream's end: %s" % (
            words, len(answer.content), answer.finish_reason, http_client.cut(response.text[-STREAM_TAIL:], GOT_LIMIT),
        )  # fmt: skip
        if error:
            raise Failed(got, causes.text_cause(error) or causes.STREAM_ERROR)
        if not stream.events:
            raise Failed(got, causes.NO_EVENTS)
        if not stream.done:
            raise Failed(got, causes.TRANSPORT["timeout"] if response.error == "timeout" else causes.NO_DONE)
        return answer, words, got

    def _streaming(self):
        answer, words, got = self._stream(self._body(ARITHMETIC, **self.low))
        self._no_residue(answer, "the stream")
        self._finished(answer, got)
        if self.chat_answer is not None and self.chat_answer.reasoning and not answer.reasoning:
            raise Failed(got, causes.STREAM_REASONING)
        if self.tool_call_made is None:
            return words + "; a streamed tool call was not tried, as tool-call brought none"
        for question in (self.tool_question, TOOL_QUESTION_AGAIN):
            answer, tool_words, got = self._stream(self._body(question, tools=TOOLS, **self.low))
            if not self._answered_instead(answer):
                break
        self._no_residue(answer, "the streamed tool call")
        self._judge_tool_call(answer, "streamed tool call: " + got)
        return "%s; tool call: %s" % (words, tool_words)

    def _concurrent(self):
        bodies = [self._body(question, **self.low) for question in CONCURRENT_QUESTIONS]
        with concurrent.futures.ThreadPoolExecutor(CONCURRENT) as pool:
            pending = [pool.submit(self._send, "POST", CHAT, body) for body in bodies]
            responses = [future.result() for future in pending]
        self._sent = "%d at once, the first: POST %s %s" % (CONCURRENT, CHAT, compact(bodies[0]))
        for number, response in enumerate(responses, 1):
            self._error = response.error
            which = "request %d of %d: " % (number, CONCURRENT)
            try:
                self._must_be(response, CHAT)
            except Failed as failure:
                raise Failed(which + failure.got, failure.cause) from failure
            answer = chat.read_answer(response.json())
            if answer is None:
                raise Failed(which + response.describe(GOT_LIMIT), causes.SHAPE)
            self._look_at(answer)
            if not answer.content.strip():
                cause = causes.LENGTH if answer.finish_reason == "length" else causes.EMPTY
                raise Failed(which + response.describe(GOT_LIMIT), cause)
        return "%d answers, the slowest after %d ms" % (len(responses), max(answer.ms for answer in responses))

    def _census(self):
        response = self._must_be(self._send("GET", self.entry["health"]["path"]), self.entry["health"]["path"])
        found = workers.count_instances(response.json())
        wanted = {role: sum(1 for worker in self.workers if worker["role"] == role) for role in workers.ROLES}
        got = ", ".join("%s %d of %d" % (role, found[role], wanted[role]) for role in workers.ROLES)
        if any(found[role] < wanted[role] for role in workers.ROLES):
            raise Failed("%s; %s" % (got, response.describe(GOT_LIMIT)), causes.CENSUS)
        return got

    def _disaggregation(self):
        """Each worker must have handled requests during the sequence: a decode worker alone answers just as well."""
        after = self._counts()
        if not after:
            raise NotMeasured("not measurable: the workers have no system port (DYN_SYSTEM_PORT) to read counters from")
        unknown = sorted(name for name in after if after[name] is None or self.counts.get(name) is None)
        known = [name for name in after if name not in unknown]
        idle = [name for name in known if after[name] <= self.counts[name]]
        got = "%s: %s" % (
            workers.METRIC,
            ", ".join("%s %d -> %d" % (name, self.counts[name], after[name]) for name in known) or "nowhere",
        )
        if idle:
            raise Failed(got, causes.idle_cause(idle))
        if unknown:
            raise NotMeasured("not measurable: no counters at the system port of %s" % ", ".join(unknown), got)
        return got

    def _counts(self):
        """{worker: requests handled so far, None where its system port does not tell} of workers with a system port."""
        counts = {}
        for worker in self.workers:
            port = worker["ports"].get("system")
            if port:
                base = http_client.base_url(worker["bind"], port)
                response = self._send("GET", "/metrics", base=base)
                self._error = None  # a worker that is away is no reason to give the frontend up
                counts[worker["name"]] = workers.request_count(response.text) if response.ok else None
        return counts

    # -- the recipe's own probes ---------------------------------------------------------------------------------------

    def _own(self, probe):
        path, expect = probe["path"], probe["expect"]
        if probe["body"] is None:
            response = self._send("GET", path)
        else:
            response = self._send("POST", path, dict({"model": self.model}, **probe["body"]))
        self._must_be(response, path, expect["status"])
        got, value = response.describe(GOT_LIMIT), response.json()
        if path == CHAT:
            answer = chat.read_answer(value)
            if answer is not None:
                self._look_at(answer)
        # the body's own escapes (\u00d7) must not hide a text from a person who wrote it plainly
        plain = response.text if value is None else response.text + json.dumps(value, ensure_ascii=False)
        missing = [text for text in expect["contains"] if text not in plain]
        if missing:
            raise Failed(got, "the recipe expects the answer to contain %s" % ", ".join(repr(text) for text in missing))
        if expect["field"]:
            found = chat.dig(value, *[int(step) if step.isdigit() else step for step in expect["field"].split(".")])
            if not found:
                if answer_ran_out(value):
                    raise Failed(got, causes.LENGTH)
                raise Failed(got, "the recipe expects %s in the answer, and it is empty or missing" % expect["field"])
        return response.describe(GOT_SHORT)


def answer_ran_out(value):
    """Whether a chat completion ended because its tokens were used up."""
    return chat.dig(value, "choices", 0, "finish_reason") == "length"


def compact(body):
    """A request's body as one short line."""
    return http_client.cut(json.dumps(body, ensure_ascii=False, separators=(",", ":")), SENT_LIMIT)
