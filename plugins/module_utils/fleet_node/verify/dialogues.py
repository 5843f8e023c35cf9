# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of messages before a question, of parameters of requests, and of API keys."""

from __future__ import annotations

import functools
import re

from ..model import gpt_oss
from ..servers import causes
from .asking import CHAT, GOT_LIMIT, GOT_SHORT, RESPONSES, Failed, NotMeasured, finished
from .streams import Streams

COMPLETIONS = "/v1/completions"


class Dialogues(Streams):
    """The requests are chat completions; none depends on another probe."""

    def _ordered(self, role, word, cause):
        """Whether an instruction in a message of this role is followed."""

        def ask():
            body = self._body(gpt_oss.SYSTEM_QUESTION)
            body["messages"].insert(0, {"role": role, "content": gpt_oss.order(word)})
            answer, response = self._ask(body)
            finished(answer, response.describe(GOT_LIMIT))
            said = word.lower() in answer.content.lower()
            if gpt_oss.is_word(answer.content, word) or (self.family and said):
                return response.describe(GOT_SHORT)
            if self.standin:
                raise NotMeasured("a stand-in need not follow a %s message" % role, response.describe(GOT_SHORT))
            raise Failed(response.describe(GOT_LIMIT), causes.SURPLUS if said else cause)

        return self._once_more(ask)

    def _system_message(self):
        return self._ordered("system", gpt_oss.SYSTEM_WORD, causes.WRONG_SYSTEM)

    def _developer_message(self):
        return self._ordered("developer", gpt_oss.DEVELOPER_WORD, causes.WRONG_DEVELOPER)

    def _multi_turn(self):
        """A number that only the assistant's earlier message contains."""

        def ask():
            number = gpt_oss.a_number()
            body = self._body(gpt_oss.CHOOSE)
            body["messages"] += [
                {"role": "assistant", "content": str(number)},
                {"role": "user", "content": gpt_oss.CHOSEN},
            ]
            return self._number(body, number, causes.WRONG_TURNS, standin="a stand-in need not know earlier answers")

        return self._once_more(ask)

    def _long_prompt(self):
        question, number = gpt_oss.long_prompt()
        if self.context is not None and self.context < gpt_oss.LONG_TOKENS + self.max_tokens:
            raise NotMeasured(
                "a context of %s tokens is too short for a prompt of %d characters" % (self.context, len(question))
            )

        standin = "a stand-in need not find a fact in a long prompt"
        ask = functools.partial(self._number, self._body(question), number, causes.WRONG_LONG, standin=standin)
        return "%d characters; %s" % (len(question), self._once_more(ask))

    def _exact_text(self):
        """Accents, other alphabets and emoji, complete and streamed."""
        if self.standin:
            raise NotMeasured("a stand-in cannot repeat a string")

        def judge(answer, got):
            self._finished(answer, got)
            if not gpt_oss.is_text(answer.content):
                raise Failed("%s; %s" % (answer.content, got), causes.WRONG_TEXT)

        return self._both_ways(self._body(gpt_oss.TEXT_QUESTION, **self.low), judge)

    def _stop_sequence(self):
        """The answer ends before a stop sequence, or with it in some engines."""
        question, word = gpt_oss.COUNTING, str(gpt_oss.STOP_AT)
        if self.standin:
            question, word = gpt_oss.SYSTEM_QUESTION, gpt_oss.STANDIN_STOP
        answer, response = self._ask(self._body(question, stop=[word], **self.low))
        got = response.describe(GOT_LIMIT)
        content = answer.content.strip()
        if not content:
            raise NotMeasured("the answer ended before its content began", got)
        if answer.finish_reason == "length":
            raise Failed(got, causes.CUT_OFF)
        if self.standin:
            if content.partition(word)[2]:
                raise Failed(got, causes.STOP_IGNORED)
            return response.describe(GOT_SHORT)
        last = re.findall(r"\d+", content)[-1:]
        if last and int(last[0]) > gpt_oss.STOP_AT:
            raise Failed(got, causes.STOP_IGNORED)
        if answer.finish_reason != "stop":
            raise Failed(got, causes.NOT_STOPPED)
        wrong = gpt_oss.counted(content, gpt_oss.STOP_AT) and gpt_oss.counted(content, gpt_oss.STOP_AT - 1)
        if wrong:
            raise NotMeasured("the answer ended early: " + wrong, got)
        return response.describe(GOT_SHORT)

    # -- access --------------------------------------------------------------------------------------------------------

    def _api_key(self):
        """Paths with text answer 401 without the key and with a wrong key."""
        key = self.options.api_key
        other = key[:-1] + ("a" if key[-1] != "a" else "b")
        body = self._body(gpt_oss.WARM_UP, max_tokens=1)
        asked = [("GET", "/v1/models", None), ("POST", CHAT, body)]
        keys = [("no key", ""), ("a wrong key", other)]
        if self.options.mode == "full":
            asked += [
                ("POST", CHAT, dict(body, stream=True)),
                ("POST", COMPLETIONS, {"model": self.model, "prompt": gpt_oss.WARM_UP, "max_tokens": 1}),
            ]
            if self.options.responses_api:
                asked.append(
                    ("POST", RESPONSES, {"model": self.model, "input": gpt_oss.WARM_UP, "max_output_tokens": 16})
                )
            keys += [("a part of the key", key[: len(key) // 2]), ("more than the key", key + "x")]

        def refused(what, sent, method, path, given):
            response = self._send(method, path, given, key=sent)
            absent = path == COMPLETIONS and response.status in (404, 405)
            if response.error or (response.status != 401 and not absent):
                raise Failed("with %s: %s" % (what, response.describe(GOT_SHORT)),
                             causes.transport_cause(response) if response.error else causes.OPEN)  # fmt: skip
            return response

        self._at_once(*[
            lambda what=what, sent=sent, one=one: refused(what, sent, *one) for what, sent in keys for one in asked
        ])  # fmt: skip
        return "401 from %s" % ", ".join(sorted({path for _method, path, _given in asked}))
