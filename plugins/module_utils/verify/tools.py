# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probes of tool calls: a call comes back complete, with its arguments, and its result reaches the model."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.verify import causes, chat, gpt_oss
from ansible_collections.inference.fleet.plugins.module_utils.verify.answers import Answers
from ansible_collections.inference.fleet.plugins.module_utils.verify.asking import (
    CHAT,
    GOT_LIMIT,
    GOT_SHORT,
    Failed,
    NotMeasured,
    finished,
)


class Tools(Answers):
    """tool_call_made, weather_call: calls that came, None until then; low: the parameter for little effort."""

    def __init__(self, entry, options):
        super().__init__(entry, options)
        self.low = {}  # once the effort probe has seen it work
        self.tool_call_made = self.weather_call = None
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
