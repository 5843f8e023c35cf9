# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The acceptance sequence of one server: each probe sends something, judges what comes back and has its own verdict."""

from __future__ import annotations

import itertools
import json

from ansible_collections.inference.fleet.plugins.module_utils.node import http_client
from ansible_collections.inference.fleet.plugins.module_utils.verify import causes, chat, gpt_oss, workers
from ansible_collections.inference.fleet.plugins.module_utils.verify.asking import (
    CHAT,
    GOT_LIMIT,
    GOT_SHORT,
    LOOK_S,
    MAX_TOKENS,
    PROMPT_TOKENS,
    RESPONSES,
    WARM_UP_FACTOR,
    Asking,
    Failed,
    NotMeasured,
    compact,
    finished,
)

STREAMS = 3  # tries until a stream brings reasoning, or does not come at once: models are sampled, machines busy
SHORT_STREAM_MS = 250  # a stream that is over sooner does not show whether something holds it back
FEW_TOKENS = 24
BURST_MS = 0.2  # between two events: no engine is that fast, only what was held back and let go
QUICK = ("identity", "model-id", "completion")
FULL = (
    "identity", "alive", "census", "model-id", "warm-up", "chat", "harmony-residue", "reasoning", "effort",
    "tool-call", "tool-round-trip", "tool-arguments", "tool-result", "system-message", "long-prompt", "sampling",
    "responses", "streaming", "unbuffered", "concurrent", "still-right", "disaggregation",
)  # fmt: skip
NO_CHAT = ("responses", "still-right")  # what is seen there may be of /v1/responses
DISAGGREGATED = ("census", "disaggregation")  # only where a frontend has prefill or decode workers beside it
AT_ONCE = gpt_oss.SUMS[4:8]  # what the probe concurrent asks, the first two streamed


def probe_names(beside, options):
    """The names of a verdict's probes, in their order; beside: the workers behind the server, [] for most."""
    names = QUICK if options.mode == "quick" else FULL
    names = [name for name in names if beside or name not in DISAGGREGATED]
    return names + ([probe["name"] for probe in options.probes] if options.mode == "full" else [])


class Acceptance(Asking):
    """Runs the sequence against one server. Use it once: results() sends requests and returns the probes' verdicts.

    identify: a function without arguments that returns words for who answers on the port, and raises Failed where that
    is not the planned server.
    """

    def __init__(self, entry, beside, options, identify):
        super().__init__(entry, options)
        self.workers = beside
        self.identify = identify
        self.low = {}  # the parameter for little effort, once the effort probe has seen it work
        self.chat_answer = self.chat_sent = None
        self.tool_call_made = self.weather_call = None
        self.tool_question = gpt_oss.TOOL_QUESTION
        self.streamed = None
        self.counts = {}  # requests that each worker had handled before the first completion
        self._slips = itertools.count()

    def results(self):
        """[{name, ok, ms, sent, got, cause}] in the order of probe_names()."""
        names = probe_names(self.workers, self.options)

        def of(*wanted):
            return [(name, getattr(self, "_" + name.replace("-", "_"))) for name in wanted if name in names]

        self._lanes(of("identity", "alive", "census", "model-id", "warm-up", "completion"))
        self._lanes(of("chat"), of("effort"))
        self._lanes(
            of("tool-call", "tool-round-trip", "tool-arguments", "tool-result"),
            of("responses", "system-message", "long-prompt"),
            of("sampling"),
        )
        own = [(probe["name"], lambda probe=probe: self._own(probe)) for probe in self.options.probes]
        self._lanes(of("streaming", "unbuffered", "concurrent", "still-right", "disaggregation") +
                    (own if self.options.mode == "full" else []))  # fmt: skip
        for name, function in of("reasoning", "harmony-residue"):  # look at all answers
            self._run(name, function, always=name == "harmony-residue" or self.chat_answer is not None)
        if self._stopped != "identity":
            before = self.results_of["identity"]
            self._run("identity", self._identity, always=True)
            self.results_of["identity"]["ms"] += before["ms"]
        return [self.results_of[name] for name in names]

    # -- is it there ---------------------------------------------------------------------------------------------------

    def _identity(self):
        try:
            return self.identify()
        except Failed:
            self._stop("identity")
            raise

    def _alive(self):
        path = self.entry["health"]["path"]
        response = self._look(path)
        if response.error or response.status >= 500:
            self._stop("alive")
        return self._must_be(response, path).describe(GOT_SHORT)

    def _model_id(self):
        response = self._look("/v1/models")
        if response.error:
            self._stop("model-id")
        value = self._must_be(response, "/v1/models").json()
        if not isinstance(chat.dig(value, "data"), list):
            raise Failed(response.describe(GOT_LIMIT), causes.SHAPE)
        cards = chat.items_of(value["data"])
        listed = self.listed = [chat.text_of(card.get("id")) for card in cards]
        if self.model not in listed:
            cause = causes.model_cause(self.model, listed, self.engine)
            if len(listed) == 1:  # the other probes can still tell whether it works under its own name
                self.model = listed[0]
            self._context(cards)
            raise Failed(response.describe(GOT_LIMIT), cause)
        context = self._context(cards)
        beside = ", ".join(name for name in listed if name != self.model)
        return "HTTP 200, lists %s%s%s" % (
            self.model,
            ", context %s" % context if context else "",
            ", and beside it %s" % beside if beside else "",
        )

    def _context(self, cards):
        """The context that the server tells of its model, which bounds what is asked for; None where it tells none."""
        self.context = next((card.get("max_model_len") for card in cards if card.get("id") == self.model), None)
        if not isinstance(self.context, int):
            self.context = None
        else:
            self.max_tokens = max(16, min(MAX_TOKENS, self.context - PROMPT_TOKENS))
        return self.context

    def _warm_up(self):
        self.counts = self._counts()
        answer, response = self._ask(self._body(gpt_oss.WARM_UP), WARM_UP_FACTOR * self.options.timeout)
        return "first completion after %d ms, finish_reason %s" % (response.ms, answer.finish_reason)

    # -- sums ----------------------------------------------------------------------------------------------------------

    def _right(self, text, number, got, cause):
        """A note on an answer that must name the number: empty where it does. Fails where it does not."""
        if gpt_oss.says_number(text, number):
            return ""
        if not self.standin:
            raise Failed(got, cause)
        if not gpt_oss.STANDIN_WORDS.search(text):
            raise Failed(got, causes.NO_SENSE)
        return "not %d, and a stand-in need not know it; " % number

    def _once_more(self, ask):
        """What ask() returns; answers are sampled, so one wrong answer of a whole sequence gets a second chance."""
        try:
            return ask()
        except Failed as failure:
            if failure.cause not in causes.WRONG or next(self._slips):
                raise
            return "right when asked again; " + ask()

    def _sum(self, one, cause, **more):
        """Ask a sum and judge the whole answer: words for it."""
        answer, response = self._ask(self._body(one.question, **more))
        got = response.describe(GOT_LIMIT)
        self._finished(answer, got)
        return self._right(answer.content, one.number, got, cause) + response.describe(GOT_SHORT)

    def _finished(self, answer, got):
        if "!!!!!!" in answer.content:
            raise Failed(got, self.engine.exclamation)
        finished(answer, got)

    def _chat(self):
        def ask():
            answer, response = self._ask(self._body(gpt_oss.ARITHMETIC))
            self.chat_answer, self.chat_sent = answer, self._here.sent
            got = response.describe(GOT_LIMIT)
            self._finished(answer, got)
            note = self._right(answer.content, gpt_oss.SUMS[0].number, got, causes.WRONG_ANSWER)
            return note + response.describe(GOT_SHORT)

        return self._once_more(ask)

    def _completion(self):
        words = self._once_more(lambda: self._sum(gpt_oss.SUMS[0], causes.WRONG_ANSWER))
        self._no_residue(self.seen[-1][2], "the answer")
        return words

    def _sampling(self):
        """Away from temperature 1, and with what the server takes where a request says nothing."""
        kinds = (
            ("temperature 0", {"temperature": 0}),
            ("temperature 0.6, top_p 0.95", {"temperature": 0.6, "top_p": 0.95}),
            ("nothing said", dict.fromkeys(("temperature", "top_p", "max_tokens"))),
        )

        def ask(what, more, one):
            try:
                return self._sum(one, causes.WRONG_SAMPLING, **more)
            except Failed as failure:
                raise Failed("%s: %s" % (what, failure.got), failure.cause) from failure

        asked = [
            lambda what=what, more=more, one=one: self._once_more(lambda: ask(what, more, one))
            for (what, more), one in zip(kinds, gpt_oss.SUMS[1:4])
        ]
        return "; ".join("%s: %s" % (kind[0], words) for kind, words in zip(kinds, self._at_once(*asked)))

    # -- what all answers show -----------------------------------------------------------------------------------------

    def _harmony_residue(self):
        if not self.seen:
            raise NotMeasured("not run: no probe brought an answer to look at")
        for probe, sent, answer in self.seen:
            self._here.sent = sent
            self._no_residue(answer, "the answer to " + probe)
        self._here.sent = None
        return "none in %d answers" % len(self.seen)

    def _reasoning(self):
        """Models are sampled and skip it sometimes: one answer with reasoning is enough."""
        if self.chat_answer is None:
            raise NotMeasured("not run: chat brought no answer")
        self._here.sent = self.chat_sent
        answers = [self.chat_answer, *(answer for probe, _sent, answer in self.seen if probe not in NO_CHAT)]
        found = next((answer for answer in answers if answer.reasoning), None)
        flags = self.engine.no_reasoning
        if found is None:
            raise Failed("neither reasoning nor reasoning_content in any of %d answers" % len(answers), flags)
        for answer in answers:
            text, content = answer.reasoning_text.strip(), answer.content.strip()
            if len(text) > 20 and content.startswith(text):
                raise Failed("the content begins with the reasoning: %s" % http_client.cut(content, GOT_SHORT), flags)
        got = "%s, %d characters" % (" and ".join(found.reasoning), len(found.reasoning_text.strip()))
        expected = self.entry.get("reasoning_field")
        if expected and expected not in found.reasoning:
            got += " (the plan expects the name %s; this engine version uses the other)" % expected
        return got

    def _effort_body(self, level):
        return gpt_oss.effort(level, self.options.effort_parameter)

    def _effort(self):
        tried = []
        for question in gpt_oss.EFFORT_QUESTIONS:
            bodies = [self._body(question, **self._effort_body(level)) for level in ("low", "high")]
            asked = self._at_once(*[lambda body=body: self._ask(body) for body in bodies])
            low, high = asked[0][0], asked[1][0]
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

    # -- tools ---------------------------------------------------------------------------------------------------------

    def _tool_call(self):
        for question in (gpt_oss.TOOL_QUESTION, gpt_oss.TOOL_QUESTION_AGAIN):
            answer, response = self._ask(self._body(question, tools=[gpt_oss.HEALTH_TOOL], **self.low))
            if not self._answered_instead(answer):
                break
        self._judge_health(answer, response.describe(GOT_LIMIT))
        self.tool_call_made = answer.tool_calls[0]
        self.tool_question = question
        return response.describe(GOT_SHORT)

    @staticmethod
    def _answered_instead(answer):
        """The model chose to answer in words, which it may: that is worth a second, plainer question."""
        return bool(answer.content.strip()) and not answer.tool_calls and answer.finish_reason == "stop"

    def _judge_tool_call(self, answer, got, name, streamed=False):
        """The arguments of the only call. Fails unless it is a whole call of the tool `name`."""
        if not answer.tool_calls:
            if answer.finish_reason == "length":
                raise Failed(got, causes.CUT_OFF if answer.content.strip() else causes.LENGTH)
            if self._answered_instead(answer) and not causes.residue(answer.content, self.engine):
                raise Failed(got, causes.NO_TOOL_CALL)
            raise Failed(got, self.engine.dropped_tool_call)
        for call in answer.tool_calls:
            if call["name"] != name:
                raise Failed(got, causes.TOOL_NAME)
            if not call["id"]:
                raise Failed(got, causes.TOOL_ID)
            if chat.tool_arguments(call) is None:
                raise Failed(got, causes.TOOL_ARGUMENTS)
        ends = self.engine.streamed_call_ends if streamed else ("tool_calls",)
        if answer.finish_reason not in ends:
            raise Failed(got, causes.TOOL_FINISH)
        return chat.tool_arguments(answer.tool_calls[0])

    def _judge_health(self, answer, got, streamed=False):
        if self._judge_tool_call(answer, got, gpt_oss.HEALTH, streamed):
            raise Failed("the tool takes no arguments; " + got, causes.TOOL_ARGUMENTS_LOST)

    def _judge_weather(self, answer, got, forecast, streamed=False):
        """Fails unless the call has the arguments of the question."""
        if self.standin:
            call = answer.tool_calls[0] if answer.tool_calls else None
            if call is None or call["name"] != gpt_oss.WEATHER or not chat.tool_arguments(call):
                raise NotMeasured("a stand-in need not know tools with arguments", got)
        wrong = forecast.wrong(self._judge_tool_call(answer, got, gpt_oss.WEATHER, streamed))
        if not wrong and len(answer.tool_calls) > 1:
            wrong = "%d calls came for one" % len(answer.tool_calls)
        if wrong:
            raise Failed("%s; %s" % (wrong, got), causes.TOOL_ARGUMENTS_LOST)

    def _weather_body(self, forecast, more=""):
        tools = [gpt_oss.WEATHER_TOOL] + ([] if self.standin else [gpt_oss.HEALTH_TOOL])
        return self._body(forecast.question + more, tools=tools, **self.low)

    def _answer_body(self, body, call, result):
        """`body` with the call and the tool's result."""
        function = {"name": call["name"], "arguments": call["arguments"] or "{}"}
        messages = [
            *body["messages"],
            {"role": "assistant", "tool_calls": [{"id": call["id"], "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call["id"], "content": result},
        ]
        return dict(body, messages=messages)

    def _tool_round_trip(self):
        if self.tool_call_made is None:
            raise NotMeasured("not run: tool-call brought no tool call")
        body = self._body(self.tool_question, tools=[gpt_oss.HEALTH_TOOL], **self.low)
        answer, response = self._after_the_tool(self._answer_body(body, self.tool_call_made, gpt_oss.TOOL_RESULT))
        mention = "mentions the result" if gpt_oss.MENTIONS.search(answer.content) else "does not mention the result"
        return "%s; %s" % (mention, response.describe(GOT_SHORT))

    def _after_the_tool(self, body):
        response = self._must_be(self._send("POST", CHAT, body), CHAT)
        answer = chat.read_answer(response.json())
        if answer is None:
            raise Failed(response.describe(GOT_LIMIT), causes.SHAPE)
        self._no_residue(answer, "the answer after the tool's result")
        finished(answer, response.describe(GOT_LIMIT))
        return answer, response

    def _tool_arguments(self):
        if self.tool_call_made is None:
            raise NotMeasured("not run: tool-call brought no tool call")
        for forecast in gpt_oss.FORECASTS[:2]:
            answer, response = self._ask(self._weather_body(forecast))
            if self.standin or not self._answered_instead(answer):
                break
        self._judge_weather(answer, response.describe(GOT_LIMIT), forecast)
        self.weather_call = answer.tool_calls[0]
        self.weather = forecast
        return response.describe(GOT_SHORT)

    def _tool_result(self):
        """The number in the result cannot be guessed: an answer that names it comes from the result."""
        if self.weather_call is None:
            raise NotMeasured("not run: tool-arguments brought no call with arguments")
        result, number = gpt_oss.weather_result(self.weather.arguments)
        body = self._weather_body(self.weather, gpt_oss.REPORT_QUESTION)
        body = self._answer_body(body, self.weather_call, result)
        for _try in range(2):
            answer, response = self._after_the_tool(body)
            if gpt_oss.says_number(answer.content, number):
                return "names the number %d of the result; %s" % (number, response.describe(GOT_SHORT))
        if self.standin:
            raise NotMeasured("a stand-in need not read a tool's result", response.describe(GOT_SHORT))
        raise Failed("%d is not in the answer: %s" % (number, response.describe(GOT_LIMIT)), causes.TOOL_RESULT_IGNORED)

    # -- what comes before the question --------------------------------------------------------------------------------

    def _system_message(self):
        def ask():
            body = self._body(gpt_oss.SYSTEM_QUESTION)
            body["messages"].insert(0, {"role": "system", "content": gpt_oss.SYSTEM_MESSAGE})
            answer, response = self._ask(body)
            finished(answer, response.describe(GOT_LIMIT))
            if gpt_oss.WORD.lower() in answer.content.lower():
                return response.describe(GOT_SHORT)
            if self.standin:
                raise NotMeasured("a stand-in need not follow a system message", response.describe(GOT_SHORT))
            raise Failed(response.describe(GOT_LIMIT), causes.WRONG_SYSTEM)

        return self._once_more(ask)

    def _long_prompt(self):
        question, number = gpt_oss.long_prompt()
        if self.context is not None and self.context < gpt_oss.LONG_TOKENS + self.max_tokens:
            raise NotMeasured(
                "a context of %d tokens is too short for a prompt of %d characters" % (self.context, len(question))
            )

        def ask():
            answer, response = self._ask(self._body(question))
            got = response.describe(GOT_LIMIT)
            self._finished(answer, got)
            if gpt_oss.says_number(answer.content, number):
                return "%d characters; %s" % (len(question), response.describe(GOT_SHORT))
            if self.standin:
                raise NotMeasured("a stand-in need not find a fact in a long prompt", response.describe(GOT_SHORT))
            raise Failed(got, causes.WRONG_LONG)

        return self._once_more(ask)

    # -- other ways to ask ---------------------------------------------------------------------------------------------

    def _responses(self):
        if not self.options.responses_api:
            raise NotMeasured("this engine has no /v1/responses (responses_api is false)")
        return self._once_more(lambda: self._respond(gpt_oss.SUMS[0]))

    def _respond(self, one, cause=causes.WRONG_RESPONSES):
        body = {"model": self.model, "input": one.question, "max_output_tokens": self.max_tokens}
        response = self._must_be(self._send("POST", RESPONSES, body), RESPONSES)
        value, got = response.json(), response.describe(GOT_LIMIT)
        output = chat.items_of(chat.dig(value, "output"))
        if any(item.get("type") == "function_call" for item in output):
            raise Failed(got, causes.UNASKED_CALL)
        texts = [
            chat.text_of(part.get("text"))
            for item in output
            if item.get("type") == "message"
            for part in chat.items_of(item.get("content"))
        ]
        text = "".join(texts)
        if not text.strip():
            ran_out = "max_output_tokens" in json.dumps(chat.dig(value, "incomplete_details")) and output
            raise Failed(got, causes.LENGTH if ran_out else causes.NO_MESSAGE)
        status = chat.dig(value, "status")
        if status not in ("completed", None):
            raise Failed(got, causes.RESPONSES_INCOMPLETE if status == "incomplete" else causes.RESPONSES_FAILED)
        self._look_at(chat.Answer(content=text, reasoning={"the output": "".join(reasoning_of(output))}))
        note = self._right(text, one.number, got, cause)
        types = ", ".join(chat.text_of(item.get("type")) for item in output)
        return "%soutput %s: %s" % (note, types, http_client.cut(text, GOT_SHORT))

    def _streamed_sum(self, one, cause=causes.WRONG_STREAM):
        """(StreamedAnswer, a note, what came) of a sum. Fails unless it is right."""
        streamed, got = self._stream(self._body(one.question))
        finished(streamed.answer, got)
        return streamed, self._right(streamed.answer.content, one.number, got, cause), got

    def _streaming(self):
        asked = [self._streamed_text]
        if self.tool_call_made is not None:
            asked.append(self._streamed_health)
        if self.weather_call is not None:
            asked.append(lambda: self._streamed_weather(gpt_oss.FORECASTS[2]))
        words = self._at_once(*asked)
        if self.tool_call_made is None:
            words.append("a streamed tool call was not tried, as tool-call brought none")
        return "; ".join(words)

    def _streamed_text(self):
        kept = []

        def ask():
            streamed, note, got = self._streamed_sum(gpt_oss.SUMS[0])
            kept.append((streamed, got))
            return note + streamed.words

        words = self._once_more(ask)
        self.streamed = kept[-1][0]
        if self.chat_answer is not None and self.chat_answer.reasoning:
            for _try in range(STREAMS - 1):
                if kept[-1][0].answer.reasoning:
                    break
                self._once_more(ask)
            else:
                if not kept[-1][0].answer.reasoning:
                    raise Failed(kept[-1][1], causes.STREAM_REASONING)
        return words

    def _streamed_health(self):
        for question in (self.tool_question, gpt_oss.TOOL_QUESTION_AGAIN):
            streamed, got = self._stream(self._body(question, tools=[gpt_oss.HEALTH_TOOL], **self.low))
            if not self._answered_instead(streamed.answer):
                break
        self._judge_health(streamed.answer, "streamed tool call: " + got, streamed=True)
        return "tool call: " + streamed.words

    def _streamed_weather(self, forecast):
        streamed, got = self._stream(self._weather_body(forecast))
        if self._answered_instead(streamed.answer):
            streamed, got = self._stream(self._weather_body(forecast))
        try:
            self._judge_weather(streamed.answer, "streamed tool call: " + got, forecast, streamed=True)
        except NotMeasured as reason:
            return reason.cause
        return "tool call with arguments: " + streamed.words

    def _unbuffered(self):
        """Whether events come while the model writes. A short stream does not show it."""
        if self.streamed is None:
            raise NotMeasured("not run: streaming brought no stream")
        if self.streamed.answer.content and flows(self.streamed):
            return tempo(self.streamed)
        if self.standin:
            raise NotMeasured("a stand-in's stream is too short to tell (%s)" % tempo(self.streamed))
        for _try in range(STREAMS):
            streamed, _got = self._stream(self._body(gpt_oss.COUNTING, **self.low))
            if flows(streamed) is not False:
                break
        if flows(streamed) is None:
            raise NotMeasured("the stream is too short to tell (%s)" % tempo(streamed))
        if not flows(streamed):
            raise Failed(tempo(streamed), causes.BUFFERED)
        return tempo(streamed)

    def _concurrent(self):
        """Different questions at once: each answer must be the one to its own question."""
        answers = {one.number for one in AT_ONCE}

        def ask(number, one, stream):
            try:
                if stream:
                    streamed, got = self._stream(self._body(one.question))
                    answer, ms = streamed.answer, streamed.ms
                else:
                    answer, response = self._ask(self._body(one.question))
                    got, ms = response.describe(GOT_LIMIT), response.ms
                self._finished(answer, got)
                swapped = any(gpt_oss.says_number(answer.content, other) for other in answers - {one.number})
                cause = causes.MIXED_UP if swapped else causes.WRONG_TOGETHER
                self._right(answer.content, one.number, got, cause)
            except Failed as failure:
                got = "request %d of %d: %s" % (number, len(AT_ONCE), failure.got)
                raise Failed(got, failure.cause) from failure
            return ms

        asked = [lambda number=number, one=one: ask(number, one, number <= 2) for number, one in enumerate(AT_ONCE, 1)]
        times = self._at_once(*asked)
        self._here.sent = "%d at once, the last: POST %s %s" % (
            len(AT_ONCE), CHAT, compact(self._body(AT_ONCE[-1].question)),
        )  # fmt: skip
        return "%d answers, the slowest after %d ms" % (len(times), max(times))

    def _still_right(self):
        """What was right at the beginning must be right at the end."""
        one, two, three = gpt_oss.SUMS[8:11]
        asked = [
            lambda: self._sum(one, causes.WRONG_LATER),
            lambda: "".join(self._streamed_sum(two, causes.WRONG_LATER)[1:]),
        ]
        if self.results_of["responses"]["ok"]:
            asked.append(lambda: self._respond(three, causes.WRONG_LATER))
        return self._at_once(*asked)[0]

    # -- Dynamo --------------------------------------------------------------------------------------------------------

    def _census(self):
        response = self._must_be(self._look(self.entry["health"]["path"]), self.entry["health"]["path"])
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
                response = self._send("GET", "/metrics", timeout=LOOK_S, base=base)
                self._here.error = None  # a worker that is away is no reason to give the frontend up
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


def reasoning_of(output):
    """The texts of the reasoning in the output of a response."""
    for item in output:
        if item.get("type") == "reasoning":
            for part in chat.items_of(item.get("content")) + chat.items_of(item.get("summary")):
                yield chat.text_of(part.get("text"))


def flows(streamed):
    """Whether the events of a stream came while it was written; None where it is too short to tell."""
    times = streamed.times
    if len(times) < FEW_TOKENS or times[-1] < SHORT_STREAM_MS:
        return None
    return times[-1] - times[0] >= BURST_MS * len(times)


def tempo(streamed):
    """How the events of a stream came, in words."""
    times = streamed.times or [0]
    return "%d pieces, the first after %d ms, the last after %d ms" % (len(streamed.times), times[0], times[-1])
