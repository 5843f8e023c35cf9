# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of tool calls: complete calls, their arguments, and their results."""

from __future__ import annotations

import re

from ..model import gpt_oss
from ..servers import causes
from . import chat
from .asking import CHAT, Asking, Failed, fail_if

DETOURS = 3  # calls of a tool before the requested call, or after its result, including the last
REFUSALS = (400, 404, 422, 501)
CHOICE = re.compile(r"(?i)tool[_ ]?choice|not supported|unsupported|not implemented|grammar|guided|structured")
CHOSEN_ENDS = ("tool_calls", "stop")  # OpenAI ends a call of a named tool with stop
STANDIN_TOKENS = 128  # of a forced call: in a form that it has not learned, a stand-in writes to the limit


class Tools(Asking):
    """tool_call_made, weather_call: the received calls, None until then, and the data that came with them;
    after_result: the conversation after a tool's result."""

    tool_call_made = weather_call = weather = weather_body = after_result = None
    tool_question = gpt_oss.TOOL_QUESTION

    def _called_health(self, ask):
        """The Answer with a call of the health tool. A model that answers in words gets a plainer question."""
        for question in (self.tool_question, gpt_oss.TOOL_QUESTION_AGAIN):
            answer = ask(self._body(question, tools=[gpt_oss.HEALTH_TOOL], **self.low))
            if not answered_instead(answer):
                break
        self._judge_health(answer)
        self.tool_question = question
        return answer

    def _tool_call(self):
        answer = self._called_health(self._ask)
        self.tool_call_made = answer.tool_calls[0]
        return answer.short

    def _judge_tool_call(self, answer, name, ends=None):
        """The arguments of the first call. Fails unless it is a complete call of the tool `name`. ends: the values of
        finish_reason that pass, if they differ from the usual values."""
        if answer.streamed:
            answer.got = "streamed tool call: " + answer.got
        if not answer.tool_calls:
            if answer.finish_reason == "length":
                raise Failed(answer.got, causes.CUT_OFF if answer.content.strip() else causes.LENGTH)
            if answered_instead(answer) and not causes.residue(answer.content, self.engine):
                raise Failed(answer.got, causes.NO_TOOL_CALL)
            raise Failed(answer.got, causes.DROPPED_CALL if self.family else self.engine.dropped_tool_call)
        arguments = [complete_call(call, name, answer.got, answer.content) for call in answer.tool_calls]
        usual = self.engine.streamed_call_ends if answer.streamed else ("tool_calls",)
        fail_if(answer.finish_reason not in (ends or usual), answer.got, causes.TOOL_FINISH)
        return arguments[0]

    def _judge_health(self, answer):
        if self._judge_tool_call(answer, gpt_oss.HEALTH):
            raise Failed("the tool accepts no arguments; " + answer.got, causes.TOOL_ARGUMENTS_LOST)

    def _judge_weather(self, answer, forecast, ends=None):
        """Fails unless the call has the arguments of the question."""
        wrong = forecast.wrong(self._judge_tool_call(answer, gpt_oss.WEATHER, ends))
        if not wrong and len(answer.tool_calls) > 1:
            wrong = "%d calls came for one" % len(answer.tool_calls)
        fail_if(wrong, "%s; %s" % (wrong, answer.got), causes.TOOL_ARGUMENTS_LOST)

    def _called_weather(self, forecasts, ask, body_of=None):
        """(the Answer with the call, the body of its request, the forecast) of the first of two forecasts, or of the
        second if the model answered in words.

        A model may call the other tool first, since the description of that tool requires its use before others.
        """
        for forecast in forecasts[:2]:
            body = (body_of or self._weather_body)(forecast)
            for _detour in range(DETOURS):
                answer = ask(body)
                calls = answer.tool_calls
                if not calls or any(call["name"] != gpt_oss.HEALTH for call in calls):
                    break
                self._judge_health(answer)
                body = self._answer_body(body, calls[0], gpt_oss.TOOL_RESULT)
            if not answered_instead(answer):
                break
        self._judge_weather(answer, forecast)
        return answer, body, forecast

    def _weather_body(self, forecast):
        return self._body(forecast.question, tools=[gpt_oss.WEATHER_TOOL, gpt_oss.HEALTH_TOOL], **self.low)

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
        body = self._body(self.tool_question, tools=[gpt_oss.HEALTH_TOOL], **self.low)
        answer = self._after_the_tool(self._answer_body(body, self.tool_call_made, gpt_oss.TOOL_RESULT))
        mention = "mentions the result" if gpt_oss.MENTIONS.search(answer.content) else "does not mention the result"
        return "%s; %s" % (mention, answer.short)

    def _after_the_tool(self, body, result=gpt_oss.TOOL_RESULT):
        """The Answer after a tool's result. If the model calls again, it gets the same result."""
        for _detour in range(DETOURS):
            answer = self._ask(body)
            self._no_residue(answer, "the answer after the tool's result")
            if answer.finish_reason != "tool_calls" or not answer.tool_calls:
                break
            body = self._answer_body(body, answer.tool_calls[0], result)
        self._finished(answer)
        return answer

    def _reported(self, body, call, arguments):
        """(the Answer with the result of a weather call, the conversation with it, the number in both). Fails unless it
        has the result's number, which cannot be guessed."""
        result, number = gpt_oss.weather_result(arguments)
        body = self._answer_body(body, call, result)
        answer = self._after_the_tool(body, result)
        if not gpt_oss.says_number(answer.content, number):
            raise Failed("%d is not in the answer: %s" % (number, answer.got), causes.TOOL_RESULT_IGNORED)
        return answer, [*body["messages"], {"role": "assistant", "content": answer.content}], number

    def _tool_arguments(self):
        forecasts = iter(gpt_oss.FORECASTS)  # others each time that it is asked again

        def ask():
            answer, self.weather_body, self.weather = self._called_weather(
                [next(forecasts), next(forecasts)], self._ask
            )
            self.weather_call = answer.tool_calls[0]
            return answer.short

        return self._once_more(ask)

    def _tool_result(self):
        first, *others = self.weather_body["messages"]
        first = dict(first, content=first["content"] + gpt_oss.REPORT_QUESTION)
        body = dict(self.weather_body, messages=[first, *others])

        def ask():
            answer, messages, number = self._reported(body, self.weather_call, self.weather.arguments)
            self.after_result = dict(body, messages=messages)
            return "names the number %d of the result; %s" % (number, answer.short)

        return self._once_more(ask)

    def _second_tool_round(self):
        """A second question in the same conversation: another call, and an answer from its result."""

        def body_of(forecast):
            question = {"role": "user", "content": forecast.question + gpt_oss.REPORT_QUESTION}
            return dict(self.after_result, messages=[*self.after_result["messages"], question])

        def ask():
            called, body, forecast = self._called_weather(gpt_oss.FORECASTS[3:5], self._ask, body_of)
            return self._reported(body, called.tool_calls[0], forecast.arguments)[0].short

        return self._once_more(ask)

    def _tool_choice(self):
        """none, the only tool of several, and any tool at all."""
        forecast = None if self.standin else gpt_oss.FORECASTS[5]
        health = self._body(self.tool_question, tools=[gpt_oss.HEALTH_TOOL], **self.low)
        name, body = (gpt_oss.WEATHER, self._weather_body(forecast)) if forecast else (gpt_oss.HEALTH, health)
        named = {"type": "function", "function": {"name": name}}
        return "; ".join(
            self._at_once(
                (self._once_more, self._choose_none),
                (self._once_more, self._choose, "named", dict(body, tool_choice=named), forecast),
                (self._once_more, self._choose, "required", dict(health, tool_choice="required"), None),
            )
        )

    def _choose_none(self):
        one = gpt_oss.SUMS[2]
        answer = self._ask(self._body(one.question, tools=[gpt_oss.HEALTH_TOOL], tool_choice="none", **self.low))
        answer.got = "tool_choice none: " + answer.got
        fail_if(answer.tool_calls, answer.got, causes.CHOICE_IGNORED)
        if not self.standin:  # it calls any tool that is in its prompt, and the engine removes the call
            self._number(answer, one.number, causes.CHOICE_IGNORED)
        return "none"

    def _choose(self, what, body, forecast):
        if self.standin:
            body = dict(body, max_tokens=STANDIN_TOKENS)
        response = self._send("POST", CHAT, body)
        if refused(response, CHOICE):
            return "%s is not supported" % what
        answer = self._answer_in(response)
        answer.got = "tool_choice %s: %s" % (what, answer.got)
        if self.standin and not answer.tool_calls:
            # forced into a form that it has not learned, it writes to its limit: no fault of the server
            return "%s is not measurable on a stand-in" % what
        self._look_at(answer, body)
        fail_if(not answer.tool_calls, answer.got, causes.CHOICE_IGNORED)
        if forecast:
            self._judge_weather(answer, forecast, CHOSEN_ENDS)
        else:
            self._judge_tool_call(answer, gpt_oss.HEALTH, CHOSEN_ENDS)
        return what


def answered_instead(answer):
    """Whether the model answered in words, which is permitted and leads to a plainer question."""
    return bool(answer.content.strip()) and not answer.tool_calls and answer.finish_reason == "stop"


def refused(response, pattern):
    """Whether a server refuses a request because it does not support it."""
    return response.error is None and response.status in REFUSALS and bool(pattern.search(response.text))


def complete_call(call, name, got, content=""):
    """The arguments of a call. Fails unless it is a complete call of the tool `name` and not in the content as well."""
    arguments = chat.tool_arguments(call)
    for wrong, cause in (
        (call["name"] != name, causes.TOOL_NAME),
        (not call["id"], causes.TOOL_ID),
        (arguments is None, causes.TOOL_ARGUMENTS),
        (call_in_content(content, call), causes.CALL_IN_CONTENT),
    ):
        fail_if(wrong, got, cause)
    return arguments


def call_in_content(content, call):
    """Whether the content of an answer contains the call as well."""
    arguments = (call["arguments"] or "").strip()
    return (len(arguments) > 4 and arguments in content) or (
        bool(call["name"])
        and re.search(r'(?:functions?\.|"name": ?"?)%s|%s ?[({]' % ((re.escape(call["name"]),) * 2), content)
        is not None
    )
