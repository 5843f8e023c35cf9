# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judging single answers of one server: the right number, an end of its own, a second chance."""

from __future__ import annotations

import itertools

from ansible_collections.inference.fleet.plugins.module_utils.verify import causes, gpt_oss
from ansible_collections.inference.fleet.plugins.module_utils.verify.asking import (
    GOT_LIMIT,
    GOT_SHORT,
    Asking,
    Failed,
    finished,
)


class Answers(Asking):
    """What probes of all kinds use to judge an answer."""

    def __init__(self, entry, options):
        super().__init__(entry, options)
        self._slips = itertools.count()

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
