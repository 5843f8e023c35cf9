# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The probes of streams and of several requests at once."""

from __future__ import annotations

from ansible_collections.inference.fleet.plugins.module_utils.verify import causes, gpt_oss
from ansible_collections.inference.fleet.plugins.module_utils.verify.asking import (
    CHAT,
    GOT_LIMIT,
    Failed,
    NotMeasured,
    compact,
    finished,
)
from ansible_collections.inference.fleet.plugins.module_utils.verify.tools import Tools

STREAMS = 3  # tries until a stream brings reasoning, or does not come at once: models are sampled, machines busy
SHORT_STREAM_MS = 250  # a stream that is over sooner does not show whether something holds it back
FEW_TOKENS = 24
BURST_MS = 0.2  # between two events: no engine is that fast, only what was held back and let go
AT_ONCE = gpt_oss.SUMS[4:8]  # what the probe concurrent asks, the first two streamed


class Streams(Tools):
    """chat_answer: the Answer of the probe chat; streamed: the StreamedAnswer of a sum. None until they came."""

    def __init__(self, entry, options):
        super().__init__(entry, options)
        self.chat_answer = self.streamed = None

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
