# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of streams and of parallel requests."""

from __future__ import annotations

from ..host import http_client
from ..model import gpt_oss
from ..servers import causes
from .asking import CHAT, GOT_LIMIT, PROMPT_TOKENS, Failed, NotMeasured, compact, finished
from .tools import Tools

STREAMS = 3  # attempts until a stream contains reasoning, or is not buffered: models are sampled, machines busy
SHORT_STREAM_MS = 250  # a shorter stream does not show whether something buffers it
FEW_TOKENS = 24
BURST_MS = 0.2  # between two events: no engine is that fast, only events that were buffered
FEW_AT_ONCE, USUAL_BATCH = 4, 16


class Streams(Tools):
    """chat_answer: the Answer of the probe chat; streamed: the StreamedAnswer of a sum. None before."""

    def __init__(self, entry, options):
        super().__init__(entry, options)
        self.chat_answer = self.streamed = None

    def _streamed_sum(self, one, cause=causes.WRONG_STREAM, reader=http_client.stream):
        """(StreamedAnswer, a note, a summary) of a sum. Fails unless it is right."""
        streamed, got = self._stream(self._body(one.question), reader)
        finished(streamed.answer, got)
        return streamed, self._right(streamed.answer.content, one.number, got, cause), got

    def _streaming(self):
        asked = [self._streamed_text]
        if self.tool_call_made is not None:
            asked.append(self._streamed_health)
        if self.weather_call is not None:
            asked.append(lambda: self._streamed_weather(gpt_oss.FORECASTS[2:4]))
        words = self._at_once(*asked)
        if self.tool_call_made is None and "tool-call" in self.results_of:
            words.append("a streamed tool call was not tried, as tool-call returned none")
        return "; ".join(words)

    def _streamed_text(self):
        kept = []

        def ask():
            streamed, note, got = self._streamed_sum(gpt_oss.SUMS[0])
            kept.append((streamed, got))
            whole = self.chat_answer
            again = (streamed.answer.content, streamed.answer.reasoning)
            if self.standin and whole and (whole.content, whole.reasoning) != again:  # it always answers the same
                raise Failed("complete: %s; streamed: %s" % (whole.content, got), causes.STREAMED_OTHERWISE)
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

    def _streamed_weather(self, forecasts):
        def ask():
            return self._called_weather(forecasts, streamed=True)[1]

        try:
            return "tool call with arguments: " + self._once_more(ask)
        except NotMeasured as reason:
            return reason.cause

    def _long_answer(self):
        """A long list of numbers, complete and streamed."""
        if self.standin:
            raise NotMeasured("a stand-in has not learned to count")
        if self.context is not None and self.context < gpt_oss.COUNT_TOKENS + PROMPT_TOKENS:
            raise NotMeasured("a context of %d tokens is too short for a long answer" % self.context)

        def judge(answer, got):
            self._finished(answer, got)
            wrong = gpt_oss.counted(answer.content)
            if wrong:
                raise Failed("%s; %s" % (wrong, got), causes.WRONG_COUNT)

        return self._both_ways(self._body(gpt_oss.COUNTING, **self.low), judge)

    def _unbuffered(self):
        """Whether events arrive while the model writes. A short stream does not show this."""
        if self.streamed is None:
            raise NotMeasured("not run: streaming returned no stream")
        if self.streamed.answer.content and flows(self.streamed):
            return tempo(self.streamed)
        if self.standin:
            raise NotMeasured("a stand-in's stream is too short (%s)" % tempo(self.streamed))
        for streamed in filter(flows, self.long_streams):
            return tempo(streamed)
        for _try in range(STREAMS):
            streamed, _got = self._stream(self._body(gpt_oss.COUNTING, **self.low))
            if flows(streamed) is not False:
                break
        if flows(streamed) is None:
            raise NotMeasured("the stream is too short (%s)" % tempo(streamed))
        if not flows(streamed):
            raise Failed(tempo(streamed), causes.BUFFERED)
        return tempo(streamed)

    def _batch(self):
        """Number of parallel requests: twice the engine's batch, so that some requests wait."""
        known = [entry.get("arguments", {}).get(self.engine.batch) for entry in (self.entry, *self.beside)]
        sizes = [int(size) for size in known if str(size).isdigit()]
        return min(gpt_oss.MOST_AT_ONCE, max(FEW_AT_ONCE, 2 * (min(sizes) if sizes else USUAL_BATCH)))

    def _concurrent(self):
        """Different questions in parallel: each answer must belong to its question."""
        sums = gpt_oss.MANY_SUMS[: self._batch()]
        answers = {one.number for one in sums}

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
                got = "request %d of %d: %s" % (number, len(sums), failure.got)
                raise Failed(got, failure.cause) from failure
            return ms

        def all_at_once():
            times = self._at_once(
                *[lambda number=number, one=one: ask(number, one, number % 2) for number, one in enumerate(sums, 1)]
            )
            return "%d answers, the slowest after %d ms" % (len(times), max(times))

        words = self._once_more(all_at_once)
        self._here.sent = "%d at once, the last: POST %s %s" % (
            len(sums), CHAT, compact(self._body(sums[-1].question)),
        )  # fmt: skip
        return words

    def _keep_alive(self):
        """Several requests over a connection, as client libraries send them."""

        def ask():
            line = http_client.Connection()
            try:
                for number, one in enumerate(gpt_oss.MANY_SUMS[-4:], 1):
                    if number > 1 and line.open is None:
                        raise NotMeasured("the server ends the connection after each answer")
                    try:
                        self._asked_on(line, one, streamed=number == 2)
                    except Failed as failure:
                        got = "request %d on one connection: %s" % (number, failure.got)
                        broken = self._here.error in ("reset", "cut", "protocol")
                        raise Failed(got, causes.NOT_OVER_HTTP if broken else failure.cause) from failure
            finally:
                line.close()
            return "4 requests on one connection"

        return self._once_more(ask)

    def _asked_on(self, line, one, streamed):
        if streamed:
            self._streamed_sum(one, reader=line.stream)
        else:
            self._sum(one, causes.WRONG_ANSWER, reader=line.request)


def flows(streamed):
    """Whether the events of a stream arrived while it was written; None if it is too short."""
    times = streamed.times
    if len(times) < FEW_TOKENS or times[-1] < SHORT_STREAM_MS:
        return None
    return times[-1] - times[0] >= BURST_MS * len(times)


def tempo(streamed):
    """A summary of the times of a stream."""
    times = streamed.times or [0]
    return "%d pieces, the first after %d ms, the last after %d ms" % (len(streamed.times), times[0], times[-1])
