# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to a server with time limits and retries, and probes that run in parallel."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import threading
import time
import typing

from ..engines.registry import engine_of
from ..host import http_client, values
from ..model import gpt_oss
from ..servers import causes
from . import chat

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
SENT_LIMIT = 400  # characters of a request in a report
GOT_LIMIT = 600  # characters of an answer behind a failing probe
STREAM_TAIL = 300  # of a stream, whose beginning shows little
GOT_SHORT = 200  # characters of an answer behind a passing probe
LOOK_S = 10  # /health and /v1/models cost an engine nothing, however slow its completions are
QUICK_S = 20  # the complete quick sequence
WARM_UP_FACTOR = 5  # the first completion compiles kernels and fills caches
TOTAL_FACTOR = 15  # of a server's complete sequence, in timeouts
MAX_TOKENS = 1024  # gpt-oss thinks before it answers: with few tokens the content is null
OTHERS_TOKENS = 4096  # others think longer, and have no levels of effort
PROMPT_TOKENS = 256  # of each prompt except the long prompt: harmony's preamble, tools, a question
BUSY_RETRIES = 3  # of a request that is answered with 429
BUSY_S = 0.5  # before such a retry if the server does not specify a time
BUSY_LIMIT_S = 30  # a server that asks for more time gets no retry
HEAD = 40  # characters of reasoning that cannot be in an answer by chance
SLIPS = 2  # wrong answers of a sequence that are asked again: a model that slips more often is not sound

# {probe: the probe whose answer it uses}
NEEDS = {
    "tool-round-trip": "tool-call", "tool-arguments": "tool-call", "tool-choice": "tool-call",
    "tool-result": "tool-arguments", "second-tool-round": "tool-result",
    "responses-stream": "responses", "responses-tools": "responses",
}  # fmt: skip
UNMET = "not run: %s did not pass"


@dataclasses.dataclass
class Options:
    """Options of a verification.

    mode: full or quick; probes: the recipe's, [{name, path, body, expect: {status, contains, field}}];
    effort_parameter: reasoning_effort or chat_template_args; responses_api: whether /v1/responses must work; timeout:
    seconds for a request; api_key: sent as a bearer token unless empty; quick_timeout: seconds for the quick sequence.
    """

    mode: str = "full"
    probes: typing.Sequence = ()
    effort_parameter: str = gpt_oss.EFFORT
    responses_api: bool = True
    timeout: float = 120
    api_key: str = ""
    quick_timeout: float = QUICK_S


class Outcome(Exception):
    """The end of a probe that did not pass. got: the answer; cause: its usual cause, or why it is not measurable."""

    ok = False

    def __init__(self, got, cause):
        super().__init__(cause)
        self.got = got
        self.cause = cause


class Failed(Outcome):
    """The probe failed."""


def fail_if(wrong, got, cause):
    """Fail the probe if something is wrong."""
    if wrong:
        raise Failed(got, cause)


class OutOfTime(Outcome):
    """The time limit of the sequence is over."""


class NotMeasured(Outcome):
    """The probe is not measurable."""

    ok = None

    def __init__(self, cause, got=None):
        super().__init__(got, cause)


class _Here(threading.local):
    """The probe of this thread: its name, its last request, and the error of that request."""

    name = sent = error = None


class Asking:
    """A server, its answers and results so far. Subclasses have the probes, whose answers other probes use."""

    def __init__(self, entry, options):
        self.entry = entry
        self.options = options
        self.engine = engine_of(entry)
        self.url = http_client.base_url(entry["bind"], entry["port"])
        self.model = entry["model_id"]  # the name in requests; the name that the server lists, once that is known
        self.context = None  # tokens, if the server reports them
        self.listed = None  # the ids in /v1/models, once they are known
        self.standin = gpt_oss.is_standin(entry["model_id"])
        self.family = entry.get("family")  # None: the default, whose answers are known in detail
        self.most_tokens = self.max_tokens = OTHERS_TOKENS if self.family else MAX_TOKENS
        self.low = {}  # the parameter for little effort, once the effort probe has seen it work
        self.seen = []  # Answers, for the probes that check all of them
        self.long_streams = []  # long streamed Answers
        self.chat_answer = self.streamed = None  # the Answer of the probe chat; a streamed sum
        self.results_of = {}
        self.url_asked = False
        self._slips = itertools.count()
        self._here = _Here()
        self._stopped = None
        self._timeouts = 0
        self._lock = threading.Lock()
        quick = options.mode == "quick"
        self._seconds = options.quick_timeout if quick else TOTAL_FACTOR * options.timeout
        self._why = "verify_quick_timeout_s" if quick else "%d times the timeout" % TOTAL_FACTOR
        self._deadline = time.monotonic() + self._seconds

    # -- probes --------------------------------------------------------------------------------------------------------

    def _run(self, name, function, always=False):
        """Run a probe and keep its verdict {name, ok, ms, sent, got, cause}; ms: its duration."""
        result = {"name": name, "ok": None, "ms": 0, "sent": None, "got": None, "cause": None}
        self.results_of[name] = result
        needed = self.results_of.get(NEEDS.get(name))
        if (self._stopped and not always) or (needed and not needed["ok"]):
            result["cause"] = "not run: %s failed" % self._stopped if self._stopped else UNMET % needed["name"]
            return
        here = self._here
        here.name, here.sent, here.error = name, None, None
        started = time.monotonic()
        try:
            result.update(got=function(), ok=True)
        except Outcome as outcome:
            result.update(got=outcome.got, ok=outcome.ok, cause=outcome.cause)
            if isinstance(outcome, OutOfTime):
                self._stop(name)
        except Exception as error:  # an answer that no probe foresees does not end the verification of other servers
            result.update(ok=False, cause="the answer cannot be judged (%s: %s)" % (type(error).__name__, error))
        result.update(got=writable(result["got"]), ms=round((time.monotonic() - started) * 1000), sent=here.sent)
        if result["ok"] is False:
            with self._lock:
                self._timeouts += here.error == "timeout"
            if here.error == "refused" or self._timeouts >= 2 or name in ("warm-up", "completion"):
                self._stop(name)

    def _stop(self, name):
        """Skip later probes, which would fail for the same reason."""
        with self._lock:
            self._stopped = self._stopped or name

    def _lanes(self, *lanes):
        """Run lanes of probes in parallel; a lane is [(name, function)], which run in sequence."""

        def run(lane):
            for name, function in lane:
                self._run(name, function)

        with concurrent.futures.ThreadPoolExecutor(len(lanes)) as pool:
            list(pool.map(run, lanes))

    def _at_once(self, *calls):
        """[result of each (function, arguments)], called in parallel. The first failure, in their order, fails the
        probe."""
        here, name = self._here, self._here.name

        def run(call):
            here.name, here.sent, here.error = name, None, None
            try:
                return call[0](*call[1:]), None, here.sent, here.error
            except Outcome as problem:
                return None, problem, here.sent, here.error

        with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
            outcomes = list(pool.map(run, calls))
        bad = next((outcome for outcome in outcomes if outcome[1] is not None), None)
        _value, problem, here.sent, here.error = bad or outcomes[0]
        if problem is not None:
            raise problem
        return [outcome[0] for outcome in outcomes]

    # -- requests ------------------------------------------------------------------------------------------------------

    def _send(self, method, path, body=None, timeout=None, reader=http_client.request, base=None, key=None):
        """The result of `reader` for the answer. A server that is busy (429) gets a retry after the time that it
        requests.

        key: an API key to send in place of the planned one, or "" for none.
        """
        key = self.options.api_key if key is None else key
        headers = {"Authorization": "Bearer " + key} if key else None
        timeout = timeout or self.options.timeout
        for retries in range(BUSY_RETRIES, -1, -1):
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise self._out_of_time()
            self.url_asked = True
            self._here.sent = "%s %s" % (method, path) + ("" if body is None else " " + compact(body))
            answer = reader(method, (base or self.url) + path, body, min(timeout, left), headers)
            response = response_of(answer)
            self._here.error = response.error
            if response.error == "timeout" and left < timeout:
                raise self._out_of_time()  # the request had less time than it may use
            wait = retry_after(response)
            if response.status != 429 or not retries or wait > min(BUSY_LIMIT_S, self._deadline - time.monotonic()):
                return answer
            time.sleep(wait)
        raise AssertionError("the last retry returns")

    def _out_of_time(self):
        return OutOfTime("the sequence did not get through", causes.too_slow(self._seconds, self._why))

    def _look(self, path):
        """The Response to a cheap GET."""
        return self._send("GET", path, timeout=min(LOOK_S, self.options.timeout))

    def _must_be(self, response, path, status=200):
        if response.error:
            raise Failed(response.describe(GOT_LIMIT), causes.transport_cause(response))
        if response.status != status:
            cause = causes.http_cause(response, path, self.engine)
            if response.status == 404 and path == CHAT and self.listed == []:
                cause = self.engine.no_models
            if response.status in (401, 403):
                self._stop(self._here.name)  # the other requests would be refused as well
                cause = causes.API_KEY_REFUSED if self.options.api_key else cause
            raise Failed(response.describe(GOT_LIMIT), cause)
        return response

    def _body(self, question, **more):
        """A chat completion's body, without keys that are None."""
        body = {"model": self.model, "messages": [{"role": "user", "content": question}]}
        body.update({"temperature": 1.0, "top_p": 1.0, "max_tokens": self.max_tokens})
        body.update(more)
        return {key: value for key, value in body.items() if value is not None}

    def _answer_in(self, response):
        """The Answer in the response to a chat completion. Fails unless it is a 200 with a message."""
        answer = chat.read_answer(self._must_be(response, CHAT).text)
        fail_if(answer is None, response.describe(GOT_LIMIT), causes.SHAPE)
        answer.got, answer.short, answer.ms = response.describe(GOT_LIMIT), response.describe(GOT_SHORT), response.ms
        answer.flaws += [] if response.utf8 else [(causes.NOT_UTF8, answer.short)]
        return answer

    def _ask(self, body, timeout=None, reader=http_client.request):
        """The Answer to a chat completion."""
        return self._accept(self._answer_in(self._send("POST", CHAT, body, timeout, reader)), body)

    def _stream(self, body, reader=http_client.stream):
        """The Answer to a streamed chat. Fails unless the stream is complete."""
        stream = self._send("POST", CHAT, dict(body, stream=True), reader=reader)
        response, events = stream.response, stream.events
        if response.error is None or not events:
            self._must_be(response, CHAT)
        answer = chat.read_stream(events)
        first = "first token after %d ms" % answer.times[0] if answer.times else "no token"
        answer.short, answer.ms = "%d events, %s" % (len(events), first), response.ms
        answer.got = "%s, %d characters of content, finish_reason %s; the stream's end: %s" % (
            answer.short, len(answer.content), answer.finish_reason,
            http_client.cut(response.text[-STREAM_TAIL:], GOT_LIMIT),
        )  # fmt: skip
        if answer.error:
            raise Failed(answer.got, causes.text_cause(answer.error, self.engine) or causes.STREAM_ERROR)
        fail_if(not events, answer.got, causes.NO_EVENTS)
        if answer.bad:
            bad = http_client.cut(answer.bad, GOT_SHORT)
            raise Failed("%s; not JSON: %s" % (answer.short, bad), causes.STREAM_NOT_JSON)
        if not stream.done:
            raise Failed(answer.got, causes.TRANSPORT["timeout"] if response.error == "timeout" else causes.NO_DONE)
        answer.flaws += [] if response.utf8 else [(causes.NOT_UTF8, answer.got)]
        answer.flaws += [] if stream.after is None else [(causes.AFTER_DONE, stream.after[:GOT_SHORT])]
        return self._accept(answer, body)

    def _accept(self, answer, body):
        """Keep an answer, and return it. Fails for residue in a stream, and for a call without a tool."""
        self._look_at(answer, body)
        if answer.streamed:
            self._no_residue(answer, "the stream")
        fail_if(answer.tool_calls and not body.get("tools"), answer.got, causes.UNASKED_CALL)
        return answer

    def _look_at(self, answer, body=None):
        """Keep an answer for the probes that check all of them, with the request that it belongs to. body: the
        request's if the question is part of the sequence, so that it is known what its answer cannot contain."""
        answer.body, answer.probe, answer.sent = body, self._here.name, self._here.sent
        self.seen.append(answer)

    # -- judging of single answers -------------------------------------------------------------------------------------

    def _no_residue(self, answer, whose):
        found = None if self.family else self._residue_in(answer)
        if found:
            raise Failed("%s, %s" % (whose, http_client.cut(found[0], GOT_SHORT)), found[1])

    def _residue_in(self, answer):
        """(the first residue in an answer, its cause), or None."""
        found = ((where, causes.residue(text, self.engine)) for where, text in answer.texts())
        return next((("in the %s: %s" % (where, one[0]), one[1]) for where, one in found if one), None)

    def _finished(self, answer):
        """Fails unless the answer has content and a finish_reason of stop."""
        fail_if("!!!!!!" in answer.content, answer.got, self.engine.exclamation)
        length = answer.finish_reason == "length"
        fail_if(not answer.content.strip(), answer.got, causes.LENGTH if length else causes.EMPTY)
        fail_if(answer.finish_reason != "stop", answer.got, causes.CUT_OFF if length else causes.NOT_STOPPED)

    def _right(self, text, number, got, cause):
        """A note on an answer that must be the number. Fails if it is another number, or contains more."""
        if gpt_oss.says_number(text, number):
            more = None if self.standin or self.family else gpt_oss.surplus(text, number)
            if more and not causes.residue(text, self.engine):  # residue has a separate probe and cause
                raise Failed("in addition to the number: %s; %s" % (more, got), causes.SURPLUS)
            return ""
        fail_if(not self.standin, got, cause)
        fail_if(not gpt_oss.STANDIN_WORDS.search(text), got, causes.NO_SENSE)
        return "not %d, and a stand-in need not know it; " % number

    def _once_more(self, ask, *arguments):
        """Return the result of ask(). Answers are sampled: if the content of an answer is wrong, two of three answers
        count. An answer with an invalid form is not repeated."""
        try:
            return ask(*arguments)
        except Failed as failure:
            if failure.cause not in causes.WRONG or next(self._slips) >= SLIPS:
                raise
        ask(*arguments)
        return "right when asked again; " + ask(*arguments)

    def _number(self, answer, number, cause):
        """Judge an answer that must be a number, and return a note on it."""
        self._finished(answer)
        return self._right(answer.content, number, answer.got, cause) + answer.short

    def _sum(self, one, cause, ask=None, **more):
        """The same for a sum. ask: self._ask() by default."""
        return self._number((ask or self._ask)(self._body(one.question, **more)), one.number, cause)

    def _both_ways(self, body, judge):
        """A summary of a complete and a streamed answer. judge(Answer) fails for a wrong answer."""

        def asked(ask):
            answer = ask(body)
            judge(answer)
            self.long_streams += [answer] if answer.streamed else []
            return answer.short

        ways = ((self._once_more, asked, ask) for ask in (self._ask, self._stream))
        return "; streamed: ".join(self._at_once(*ways))

    # -- properties of all answers -------------------------------------------------------------------------------------

    def _all_of(self, judge, words):
        """Fails with the first answer for which judge(Answer) returns (problem, cause); otherwise returns `words`."""
        if not self.seen:
            raise NotMeasured("not run: no probe got an answer")
        for answer in self.seen:
            wrong = judge(answer)
            if wrong:
                self._here.sent = answer.sent
                raise Failed("in the answer to %s: %s" % (answer.probe, http_client.cut(wrong[0], GOT_LIMIT)), wrong[1])
        self._here.sent = None
        return words % len(self.seen)

    def _form(self):
        ids = {}

        def judge(answer):
            for cause, words in answer.flaws:
                return words, cause
            for call in answer.tool_calls:
                if call["id"] and ids.setdefault(call["id"], answer) is not answer and not self.engine.same_call_ids:
                    return "%s, which an earlier call had" % call["id"], causes.SAME_ID
            return None

        return self._all_of(judge, "%d answers are well formed")

    def _echo(self):
        return self._all_of(echoes, "no prompt and no other turn in %d answers")

    def _reasoning_apart(self):
        """Fails if the content of an answer contains reasoning."""
        return self._all_of(
            lambda answer: (answer.content, self.engine.no_reasoning) if mixed(answer) else None,
            "in none of %d answers",
        )

    def _judge_all(self):
        """Fails for the reasons of the probes that judge all answers."""
        for answer in self.seen:
            self._no_residue(answer, "the answer")
        checks = (self._form,) if self.family else (self._form, self._echo, self._reasoning_apart)
        for check in checks if self.seen else ():
            check()


def response_of(answer):
    """The Response in the result of a reader of http_client."""
    return answer.response if isinstance(answer, http_client.Stream) else answer


def retry_after(response):
    """Seconds until the retry that a busy server requests."""
    seconds = http_client.whole_number(response.headers.get("retry-after", "").strip())
    return BUSY_S if seconds is None else float(seconds)


def writable(text):
    """`text` without surrogates, which JSON may contain and files cannot."""
    return text and text.encode("utf-8", "backslashreplace").decode("utf-8")


def compact(body):
    """A request's body on a short line."""
    return http_client.cut(json.dumps(body, ensure_ascii=False, separators=(",", ":")), SENT_LIMIT)


def echoes(answer):
    """(the part of an answer that belongs to its prompt or to another turn, the cause), or None."""
    if answer.body is None:
        return None
    prompts = [message.get("content") for message in answer.body.get("messages", ())] + [answer.body.get("input")]
    for prompt in prompts:
        shown = gpt_oss.shown_prompt(answer.content, values.text_of(prompt))
        if shown and prompt != answer.content:
            return shown, causes.PROMPT_SHOWN
    turn = (gpt_oss.SPEAKERS if answer.body.get("tools") else gpt_oss.ROLES).search(answer.content)
    return (answer.content[max(0, turn.start() - 20) :][:100], causes.OTHER_ROLES) if turn else None


def mixed(answer):
    """Whether the content of an answer contains its reasoning, or phrases of reasoning."""
    text, content = answer.reasoning_text.strip(), answer.content.strip()
    head = text[:HEAD]
    if len(head) == HEAD and head in content and content not in text:
        return True
    if len(text) > 20 and content.startswith(text):
        return True
    return answer.body is not None and gpt_oss.THINKING.search(content) is not None
