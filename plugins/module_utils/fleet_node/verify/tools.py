# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of tool calls: complete calls, their arguments, and their results."""

from __future__ import annotations

import re

from ..model import gpt_oss
from ..servers import causes
from . import chat
from .asking import CHAT, GOT_LIMIT, GOT_SHORT, Answers, Failed, NotMeasured, finished

DETOURS = 3  # calls of a tool before the requested call, or after its result, including the last
REFUSALS = (400, 404, 422, 501)
CHOICE = re.compile(r"(?i)tool[_ ]?choice|not supported|unsupported|not implemented|grammar|guided|structured")
CHOSEN_ENDS = ("tool_calls", "stop")  # OpenAI ends a call of a named tool with stop
STANDIN_TOKENS = 128  # of a forced call: in a form that it has not learned, a stand-in writes to the limit


class AnsweredInstead(Exception):
    """The model answered in words instead of a tool call; got: the answer."""

    def __init__(self, got):
        super().__init__(got)
        self.got = got


class Tools(Answers):
    """tool_call_made, weather_call: the received calls, None until then, and the data that came with them;
    after_result: the conversation after a tool's result; low: the parameter for little effort."""

    def __init__(self, entry, options):
        super().__init__(entry, options)
        self.low = {}  # once the effort probe has seen it work
        self.tool_call_made = self.weather_call = self.weather = self.weather_body = self.after_result = None
        self.tool_question = gpt_oss.TOOL_QUESTION

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
        """Whether the model answered in words, which is permitted and leads to a plainer question."""
        return bool(answer.content.strip()) and not answer.tool_calls and answer.finish_reason == "stop"

    def _judge_tool_call(self, answer, got, name, streamed=False, ends=None):
        """The arguments of the first call. Fails unless it is a complete call of the tool `name`. ends: the values of
        finish_reason that pass, if they differ from the usual values."""
        if not answer.tool_calls:
            if answer.finish_reason == "length":
                raise Failed(got, causes.CUT_OFF if answer.content.strip() else causes.LENGTH)
            if self._answered_instead(answer) and not causes.residue(answer.content, self.engine):
                raise Failed(got, causes.NO_TOOL_CALL)
            raise Failed(got, causes.DROPPED_CALL if self.family else self.engine.dropped_tool_call)
        for call in answer.tool_calls:
            if call["name"] != name:
                raise Failed(got, causes.TOOL_NAME)
            if not call["id"]:
                raise Failed(got, causes.TOOL_ID)
            if chat.tool_arguments(call) is None:
                raise Failed(got, causes.TOOL_ARGUMENTS)
            if call_in_content(answer.content, call):
                raise Failed(got, causes.CALL_IN_CONTENT)
        if answer.finish_reason not in (ends or (self.engine.streamed_call_ends if streamed else ("tool_calls",))):
            raise Failed(got, causes.TOOL_FINISH)
        return chat.tool_arguments(answer.tool_calls[0])

    def _judge_health(self, answer, got, streamed=False):
        if self._judge_tool_call(answer, got, gpt_oss.HEALTH, streamed):
            raise Failed("the tool accepts no arguments; " + got, causes.TOOL_ARGUMENTS_LOST)

    def _judge_weather(self, answer, got, forecast, streamed=False, ends=None):
        """Fails unless the call has the arguments of the question."""
        if self.standin:
            call = answer.tool_calls[0] if answer.tool_calls else None
            if call is None or call["name"] != gpt_oss.WEATHER or not chat.tool_arguments(call):
                raise NotMeasured("a stand-in need not know tools with arguments", got)
        wrong = forecast.wrong(self._judge_tool_call(answer, got, gpt_oss.WEATHER, streamed, ends))
        if not wrong and len(answer.tool_calls) > 1:
            wrong = "%d calls came for one" % len(answer.tool_calls)
        if wrong:
            raise Failed("%s; %s" % (wrong, got), causes.TOOL_ARGUMENTS_LOST)

    def _ask_weather(self, body, forecast, streamed=False):
        """(the call that answers a question for the weather, words for the answer, the body of its request).

        A model may call the other tool first, since the description of that tool requires its use before others.
        """
        for _detour in range(DETOURS):
            answer, response = self._stream(body) if streamed else self._ask(body)
            got = "streamed tool call: " + response if streamed else response.describe(GOT_LIMIT)
            calls = answer.answer.tool_calls if streamed else answer.tool_calls
            if self.standin or not calls or any(call["name"] != gpt_oss.HEALTH for call in calls):
                break
            self._judge_health(answer.answer if streamed else answer, got, streamed)
            body = self._answer_body(body, calls[0], gpt_oss.TOOL_RESULT)
        words = answer.words if streamed else response.describe(GOT_SHORT)
        answer = answer.answer if streamed else answer
        if not self.standin and self._answered_instead(answer):
            raise AnsweredInstead(got)
        self._judge_weather(answer, got, forecast, streamed)
        return answer.tool_calls[0], words, body

    def _called_weather(self, forecasts, streamed=False, body_of=None):
        """As _ask_weather(), of the first forecast, or the second if the model answered in words."""
        body_of = body_of or self._weather_body
        for last, forecast in enumerate(forecasts[:2]):
            try:
                return (*self._ask_weather(body_of(forecast), forecast, streamed), forecast)
            except AnsweredInstead as answered:
                if last:
                    raise Failed(answered.got, causes.NO_TOOL_CALL) from answered
        raise AssertionError("two forecasts are needed")

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
            raise NotMeasured("not run: tool-call returned no tool call")
        body = self._body(self.tool_question, tools=[gpt_oss.HEALTH_TOOL], **self.low)
        answer, response = self._after_the_tool(self._answer_body(body, self.tool_call_made, gpt_oss.TOOL_RESULT))
        mention = "mentions the result" if gpt_oss.MENTIONS.search(answer.content) else "does not mention the result"
        return "%s; %s" % (mention, response.describe(GOT_SHORT))

    def _after_the_tool(self, body, result=gpt_oss.TOOL_RESULT):
        """(Answer, Response) after a tool's result. If the model calls again, it gets the same result."""
        for _detour in range(DETOURS):
            answer, response = self._ask(body)
            self._no_residue(answer, "the answer after the tool's result")
            if answer.finish_reason != "tool_calls" or not answer.tool_calls:
                break
            body = self._answer_body(body, answer.tool_calls[0], result)
        finished(answer, response.describe(GOT_LIMIT))
        return answer, response

    def _tool_arguments(self):
        if self.tool_call_made is None:
            raise NotMeasured("not run: tool-call returned no tool call")
        forecasts = iter(gpt_oss.FORECASTS)  # others each time that it is asked again

        def ask():
            call, words, body, forecast = self._called_weather([next(forecasts), next(forecasts)])
            self.weather_call, self.weather, self.weather_body = call, forecast, body
            return words

        return self._once_more(ask)

    def _tool_result(self):
        """The answer must contain the result's number, which cannot be guessed."""
        if self.weather_call is None:
            raise NotMeasured("not run: tool-arguments got no call with arguments")

        def ask():
            result, number = gpt_oss.weather_result(self.weather.arguments)
            messages = [dict(message) for message in self.weather_body["messages"]]
            messages[0]["content"] += gpt_oss.REPORT_QUESTION
            body = self._answer_body(dict(self.weather_body, messages=messages), self.weather_call, result)
            answer, response = self._after_the_tool(body, result)
            if not gpt_oss.says_number(answer.content, number):
                got = "%d is not in the answer: %s" % (number, response.describe(GOT_LIMIT))
                raise Failed(got, causes.TOOL_RESULT_IGNORED)
            self.after_result = dict(body, messages=[
                *body["messages"], {"role": "assistant", "content": answer.content}])  # fmt: skip
            return "names the number %d of the result; %s" % (number, response.describe(GOT_SHORT))

        try:
            return self._once_more(ask)
        except Failed as failure:
            if self.standin and failure.cause == causes.TOOL_RESULT_IGNORED:
                raise NotMeasured("a stand-in need not read a tool's result", failure.got) from failure
            raise

    def _second_tool_round(self):
        """A second question in the same conversation: another call, and an answer from its result."""
        if self.after_result is None:
            raise NotMeasured("not run: tool-result got no answer")

        def body_of(forecast):
            question = {"role": "user", "content": forecast.question + gpt_oss.REPORT_QUESTION}
            return dict(self.after_result, messages=[*self.after_result["messages"], question])

        def ask():
            call, _words, body, forecast = self._called_weather(gpt_oss.FORECASTS[3:5], body_of=body_of)
            result, number = gpt_oss.weather_result(forecast.arguments)
            answer, response = self._after_the_tool(self._answer_body(body, call, result), result)
            if not gpt_oss.says_number(answer.content, number):
                got = "%d is not in the answer: %s" % (number, response.describe(GOT_LIMIT))
                raise Failed(got, causes.TOOL_RESULT_IGNORED)
            return response.describe(GOT_SHORT)

        return self._once_more(ask)

    def _tool_choice(self):
        """none, the only tool of several, and any tool at all."""
        if self.tool_call_made is None:
            raise NotMeasured("not run: tool-call returned no tool call")
        return "; ".join(self._at_once(self._choose_none, self._choose_one, self._choose_any))

    def _choose_none(self):
        def ask():
            one = gpt_oss.SUMS[2]
            body = self._body(one.question, tools=[gpt_oss.HEALTH_TOOL], tool_choice="none", **self.low)
            answer, response = self._ask(body)
            got = "tool_choice none: " + response.describe(GOT_LIMIT)
            if answer.tool_calls:
                raise Failed(got, causes.CHOICE_IGNORED)
            if self.standin:  # it calls any tool that is in its prompt, and the engine removes the call
                return "none"
            self._finished(answer, got)
            self._right(answer.content, one.number, got, causes.CHOICE_IGNORED)
            return "none"

        return self._once_more(ask)

    def _choose_one(self):
        if self.standin:
            body = self._body(self.tool_question, tools=[gpt_oss.HEALTH_TOOL], **self.low)
            return self._choose("named", {"type": "function", "function": {"name": gpt_oss.HEALTH}}, body, None)
        forecast = gpt_oss.FORECASTS[5]
        choice = {"type": "function", "function": {"name": gpt_oss.WEATHER}}
        return self._choose("named", choice, self._weather_body(forecast), forecast)

    def _choose_any(self):
        body = self._body(self.tool_question, tools=[gpt_oss.HEALTH_TOOL], **self.low)
        return self._choose("required", "required", body, None)

    def _choose(self, what, choice, body, forecast):
        if self.standin:
            body = dict(body, max_tokens=STANDIN_TOKENS)

        def ask():
            response = self._send("POST", CHAT, dict(body, tool_choice=choice))
            if response.error is None and response.status in REFUSALS and CHOICE.search(response.text):
                return "%s is not supported" % what
            self._must_be(response, CHAT)
            answer = chat.read_answer(response.json())
            got = "tool_choice %s: %s" % (what, response.describe(GOT_LIMIT))
            if answer is None:
                raise Failed(got, causes.SHAPE)
            if self.standin and not answer.tool_calls:
                # forced into a form that it has not learned, it writes to its limit: no fault of the server
                return "%s is not measurable on a stand-in" % what
            self._look_at(answer, body)
            if not answer.tool_calls:
                raise Failed(got, causes.CHOICE_IGNORED)
            if forecast is None:
                self._judge_tool_call(answer, got, gpt_oss.HEALTH, ends=CHOSEN_ENDS)
            else:
                self._judge_weather(answer, got, forecast, ends=CHOSEN_ENDS)
            return what

        return self._once_more(ask)


def call_in_content(content, call):
    """Whether the content of an answer contains the call as well."""
    arguments = (call["arguments"] or "").strip()
    return (len(arguments) > 4 and arguments in content) or (
        bool(call["name"])
        and re.search(r'(?:functions?\.|"name": ?"?)%s|%s ?[({]' % ((re.escape(call["name"]),) * 2), content)
        is not None
    )
