# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of /v1/responses: complete, streamed, and with a tool."""

from __future__ import annotations

import json
import re

from ..host import http_client
from ..model import gpt_oss
from ..servers import causes
from . import chat
from .asking import CHAT, GOT_LIMIT, GOT_SHORT, RESPONSES, Failed, NotMeasured, fail_if, response_of
from .streams import Streams
from .tools import complete_call, refused

LACKS = re.compile(r"(?i)not (?:yet )?(?:supported|implemented)|unsupported|unimplemented")


COMPLETIONS = "/v1/completions"


class Dialogues(Streams):
    """The requests are chat completions; none depends on another probe."""

    def _ordered(self, role, word, cause):
        """Whether an instruction in a message of this role is followed."""
        body = self._body(gpt_oss.SYSTEM_QUESTION)
        body["messages"].insert(0, {"role": role, "content": gpt_oss.order(word)})
        answer = self._ask(body)
        self._finished(answer)
        said = word.lower() in answer.content.lower()
        if gpt_oss.is_word(answer.content, word) or (self.family and said):
            return answer.short
        raise Failed(answer.got, causes.SURPLUS if said else cause)

    def _system_message(self):
        return self._once_more(self._ordered, "system", gpt_oss.SYSTEM_WORD, causes.WRONG_SYSTEM)

    def _developer_message(self):
        return self._once_more(self._ordered, "developer", gpt_oss.DEVELOPER_WORD, causes.WRONG_DEVELOPER)

    def _multi_turn(self):
        """A number that only the assistant's earlier message contains."""

        def ask():
            number = gpt_oss.a_number()
            body = self._body(gpt_oss.CHOOSE)
            body["messages"] += [
                {"role": "assistant", "content": str(number)},
                {"role": "user", "content": gpt_oss.CHOSEN},
            ]
            return self._number(self._ask(body), number, causes.WRONG_TURNS)

        return self._once_more(ask)

    def _long_prompt(self):
        question, number = gpt_oss.long_prompt()
        if self.context is not None and self.context < gpt_oss.LONG_TOKENS + self.max_tokens:
            raise NotMeasured(
                "a context of %s tokens is too short for a prompt of %d characters" % (self.context, len(question))
            )

        def ask():
            return self._number(self._ask(self._body(question)), number, causes.WRONG_LONG)

        return "%d characters; %s" % (len(question), self._once_more(ask))

    def _exact_text(self):
        """Accents, other alphabets and emoji, complete and streamed."""

        def judge(answer):
            self._finished(answer)
            if not gpt_oss.is_text(answer.content):
                raise Failed("%s; %s" % (answer.content, answer.got), causes.WRONG_TEXT)

        return self._both_ways(self._body(gpt_oss.TEXT_QUESTION, **self.low), judge)

    def _stop_sequence(self):
        """The answer ends before a stop sequence, or with it in some engines."""
        question, word = gpt_oss.COUNTING, str(gpt_oss.STOP_AT)
        if self.standin:
            question, word = gpt_oss.SYSTEM_QUESTION, gpt_oss.STANDIN_STOP
        answer = self._ask(self._body(question, stop=[word], **self.low))
        content = answer.content.strip()
        if not content:
            raise NotMeasured("the answer ended before its content began", answer.got)
        fail_if(answer.finish_reason == "length", answer.got, causes.CUT_OFF)
        if self.standin:
            fail_if(content.partition(word)[2], answer.got, causes.STOP_IGNORED)
            return answer.short
        last = re.findall(r"\d+", content)[-1:]
        fail_if(last and int(last[0]) > gpt_oss.STOP_AT, answer.got, causes.STOP_IGNORED)
        fail_if(answer.finish_reason != "stop", answer.got, causes.NOT_STOPPED)
        wrong = gpt_oss.counted(content, gpt_oss.STOP_AT) and gpt_oss.counted(content, gpt_oss.STOP_AT - 1)
        if wrong:
            raise NotMeasured("the answer ended early: " + wrong, answer.got)
        return answer.short

    # -- access --------------------------------------------------------------------------------------------------------

    def _api_key(self):
        """Paths with text answer 401 without the key and with a wrong key."""
        key = self.options.api_key
        other = key[:-1] + ("a" if key[-1] != "a" else "b")
        body = self._body(gpt_oss.WARM_UP, max_tokens=1)
        asked = [("/v1/models", None), (CHAT, body)]
        keys = [("no key", ""), ("a wrong key", other)]
        if self.options.mode == "full":
            prompt = {"model": self.model, "prompt": gpt_oss.WARM_UP, "max_tokens": 1}
            asked += [(CHAT, dict(body, stream=True)), (COMPLETIONS, prompt)]
            if self.options.responses_api:
                asked.append((RESPONSES, dict(self._response_body(gpt_oss.WARM_UP), max_output_tokens=16)))
            keys += [("a part of the key", key[: len(key) // 2]), ("more than the key", key + "x")]

        def check(what, sent, path, given):
            response = self._send("POST" if given else "GET", path, given, key=sent)
            got = "with %s: %s" % (what, response.describe(GOT_SHORT))
            if response.error:
                raise Failed(got, causes.transport_cause(response))
            absent = path == COMPLETIONS and response.status in (404, 405)
            fail_if(response.status != 401 and not absent, got, causes.OPEN)

        self._at_once(*((check, what, sent, *one) for what, sent in keys for one in asked))
        return "401 from %s" % ", ".join(sorted({path for path, _given in asked}))

    def _response_body(self, question, **more):
        return dict({"model": self.model, "input": question, "max_output_tokens": self.max_tokens}, **more)


# ---- /v1/responses


class Responses(Dialogues):
    """Features that an engine does not support are not measured."""

    def _responses(self):
        if not self.options.responses_api:
            raise NotMeasured("this engine has no /v1/responses (responses_api is false)")
        return self._once_more(self._respond, gpt_oss.SUMS[0])

    def _to_responses(self, body, reader=http_client.request):
        """The answer to a request that an engine may not support. Fails unless it is a 200."""
        answer = self._send("POST", RESPONSES, body, reader=reader)
        response = response_of(answer)
        if refused(response, LACKS):
            raise NotMeasured("this engine does not support it in /v1/responses", response.describe(GOT_SHORT))
        if response.error is None or reader is http_client.request:
            self._must_be(response, RESPONSES)
        return answer

    def _responses_stream(self):
        return self._where_known(self._respond_streamed, gpt_oss.SUMS[3])

    def _where_known(self, ask, *arguments):
        """The result of ask(). For engines whose streams and tools there were not tested, failures are not measured."""
        try:
            return self._once_more(ask, *arguments)
        except Failed as failure:
            if self.engine.responses_known:
                raise
            words = "not measurable: what this engine answers there is not known; as with others: " + failure.cause
            raise NotMeasured(words, failure.got) from failure

    def _strict(self, response, text, got):
        """The JSON value of a body, or of an event in it. Fails unless it is strict."""
        value, wrong = chat.strict(text)
        fail_if(not response.utf8, got, causes.NOT_UTF8)
        fail_if(wrong, "%s; %s" % (wrong, got), causes.NOT_STRICT)
        return value

    def _respond_streamed(self, one):
        body = self._response_body(one.question, stream=True)
        stream = self._to_responses(body, http_client.stream)
        response = stream.response
        got = "%d events: %s" % (len(stream.events), http_client.cut(response.text[-GOT_SHORT:], GOT_LIMIT))
        if not stream.events:
            self._must_be(response, RESPONSES)
            raise Failed(response.describe(GOT_LIMIT), causes.NO_EVENTS)
        text, final = "", None
        for event in stream.events:
            if not isinstance(event.json(), dict):
                raise Failed("not JSON: " + http_client.cut(event.data, GOT_SHORT), causes.STREAM_NOT_JSON)
            value = self._strict(response, event.data, got)
            kind = value.get("type")
            if kind in ("error", "response.failed") or value.get("error"):
                raise Failed(http_client.cut(event.data, GOT_LIMIT), causes.STREAM_ERROR)
            if kind == "response.output_text.delta":
                fail_if(final is not None, got, causes.AFTER_END)
                text += chat.text_of(value.get("delta"))
            if kind in ("response.completed", "response.incomplete"):
                final = value.get("response")
        fail_if(final is None, got, causes.RESPONSES_CUT)
        fail_if(not isinstance(final, dict), got, causes.NO_MESSAGE)
        output = final.get("output") or [{"type": "message", "content": [{"type": "output_text", "text": text}]}]
        note = self._judge_response({**final, "output": output}, one, got, causes.WRONG_STREAM)
        if texts_in(output, "message", "content") != text:
            raise Failed("the pieces are %r; %s" % (text[:GOT_SHORT], got), causes.STREAMED_OTHERWISE)
        return note + "%d events" % len(stream.events)

    def _responses_tools(self):
        forecasts = iter(gpt_oss.FORECASTS)

        def ask():
            forecast = next(forecasts)
            tool, question = gpt_oss.WEATHER_TOOL, forecast.question
            if self.standin:
                tool, question = gpt_oss.HEALTH_TOOL, gpt_oss.TOOL_QUESTION_AGAIN
            tool = dict({"type": "function"}, **tool["function"])
            response = self._to_responses(self._response_body(question, tools=[tool]))
            got = response.describe(GOT_LIMIT)
            output = chat.items_of(chat.dig(self._strict(response, response.text, got), "output"))
            text = texts_in(output, "message", "content")
            calls = [one for one in output if one.get("type") == "function_call"]
            if not calls:
                raise Failed(got, causes.RESPONSES_NO_CALL if text.strip() else self.engine.dropped_tool_call)
            call = {
                "id": chat.text_of(calls[0].get("call_id")) or None,
                "name": chat.text_of(calls[0].get("name")) or None,
                "arguments": chat.arguments_text(calls[0].get("arguments")),
            }
            arguments = complete_call(call, tool["name"], got)
            wrong = arguments and "it accepts no arguments" if self.standin else forecast.wrong(arguments)
            fail_if(wrong, "%s; %s" % (wrong, got), causes.TOOL_ARGUMENTS_LOST)
            self._look_at(chat.Answer(content=text, tool_calls=[call], finish_reason="stop"))
            return response.describe(GOT_SHORT)

        return self._where_known(ask)

    def _respond(self, one, cause=causes.WRONG_RESPONSES):
        response = self._must_be(self._send("POST", RESPONSES, self._response_body(one.question)), RESPONSES)
        got = response.describe(GOT_LIMIT)
        return self._judge_response(self._strict(response, response.text, got), one, got, cause)

    def _judge_response(self, value, one, got, cause):
        output = chat.items_of(chat.dig(value, "output"))
        fail_if(any(item.get("type") == "function_call" for item in output), got, causes.UNASKED_CALL)
        text = texts_in(output, "message", "content")
        if not text.strip():
            ran_out = "max_output_tokens" in json.dumps(chat.dig(value, "incomplete_details")) and output
            raise Failed(got, causes.LENGTH if ran_out else causes.NO_MESSAGE)
        status = chat.dig(value, "status")
        if status not in ("completed", None):
            raise Failed(got, causes.RESPONSES_INCOMPLETE if status == "incomplete" else causes.RESPONSES_FAILED)
        reasoning = texts_in(output, "reasoning", "content", "summary")
        self._look_at(chat.Answer(content=text, reasoning={"the output": reasoning}), {"input": one.question})
        note = self._right(text, one.number, got, cause)
        types = ", ".join(chat.text_of(item.get("type")) for item in output)
        return "%soutput %s: %s" % (note, types, http_client.cut(text, GOT_SHORT))


def texts_in(output, kind, *keys):
    """The text of the parts below these keys of all items of a kind in the output of a response."""
    items = [item for item in chat.items_of(output) if item.get("type") == kind]
    parts = [part for item in items for key in keys for part in chat.items_of(item.get(key))]
    return "".join(chat.text_of(part.get("text")) for part in parts)
