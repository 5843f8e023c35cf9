# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judging of single answers: the right number, a proper end, a second chance."""

from __future__ import annotations

import itertools

from ..host import http_client, values
from ..model import gpt_oss
from ..servers import causes
from .asking import GOT_LIMIT, GOT_SHORT, Asking, Failed, NotMeasured, finished

HEAD = 40  # characters of reasoning that cannot be in an answer by chance
SLIPS = 2  # wrong answers of a sequence that are asked again: a model that slips more often is not sound


class Answers(Asking):
    """Functions that judge answers for all probes."""

    def __init__(self, entry, options):
        super().__init__(entry, options)
        self._slips = itertools.count()
        self.long_streams = []  # StreamedAnswers

    def _right(self, text, number, got, cause):
        """A note on an answer that must be the number. Fails if it is another number, or contains more."""
        if gpt_oss.says_number(text, number):
            more = None if self.standin or self.family else gpt_oss.surplus(text, number)
            if more and not causes.residue(text, self.engine):  # residue has a separate probe and cause
                raise Failed("in addition to the number: %s; %s" % (more, got), causes.SURPLUS)
            return ""
        if not self.standin:
            raise Failed(got, cause)
        if not gpt_oss.STANDIN_WORDS.search(text):
            raise Failed(got, causes.NO_SENSE)
        return "not %d, and a stand-in need not know it; " % number

    def _once_more(self, ask):
        """Return the result of ask(). Answers are sampled: if the content of an answer is wrong, two of three answers
        count. An answer with an invalid form is not repeated."""
        try:
            return ask()
        except Failed as failure:
            if failure.cause not in causes.WRONG or next(self._slips) >= SLIPS:
                raise
        ask()
        return "right when asked again; " + ask()

    def _number(self, body, number, cause, reader=http_client.request, standin=None):
        """Ask for a number, judge the complete answer and return a note on it. standin: the reason why a stand-in need
        not know the number."""
        answer, response = self._ask(body, reader=reader)
        got = response.describe(GOT_LIMIT)
        self._finished(answer, got)
        if standin and self.standin and not gpt_oss.says_number(answer.content, number):
            raise NotMeasured(standin, response.describe(GOT_SHORT))
        return self._right(answer.content, number, got, cause) + response.describe(GOT_SHORT)

    def _sum(self, one, cause, reader=http_client.request, **more):
        """The same for a sum."""
        return self._number(self._body(one.question, **more), one.number, cause, reader)

    def _both_ways(self, body, judge):
        """A summary of a complete and a streamed answer. judge(Answer, summary) fails for a wrong answer."""

        def complete():
            answer, response = self._ask(body)
            judge(answer, response.describe(GOT_LIMIT))
            return response.describe(GOT_SHORT)

        def streamed():
            streamed, got = self._stream(body)
            judge(streamed.answer, got)
            self.long_streams.append(streamed)
            return streamed.words

        asked = [lambda ask=ask: self._once_more(ask) for ask in (complete, streamed)]
        return "; streamed: ".join(self._at_once(*asked))

    def _finished(self, answer, got):
        if "!!!!!!" in answer.content:
            raise Failed(got, self.engine.exclamation)
        finished(answer, got)

    # -- properties of all answers -------------------------------------------------------------------------------------

    def _all_of(self, judge, words):
        """Fails with the first answer for which judge(Answer) returns (problem, cause); otherwise returns `words`."""
        if not self.seen:
            raise NotMeasured("not run: no probe got an answer")
        for probe, sent, answer in self.seen:
            wrong = judge(answer)
            if wrong:
                self._here.sent = sent
                raise Failed("in the answer to %s: %s" % (probe, http_client.cut(wrong[0], GOT_LIMIT)), wrong[1])
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
        if not self.seen:
            return
        for _probe, _sent, answer in self.seen:
            self._no_residue(answer, "the answer")
        for judge in (self._form,) if self.family else (self._form, self._echo, self._reasoning_apart):
            judge()


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
