# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of streams and of parallel requests."""

from __future__ import annotations

import functools

from ..host import http_client
from ..model import gpt_oss
from ..servers import causes
from .asking import CHAT, PROMPT_TOKENS, Failed, NotMeasured, compact, fail_if
from .tools import Tools

STREAMS = 3  # attempts until a stream contains reasoning, or is not buffered: models are sampled, machines busy
SHORT_STREAM_MS = 250  # a shorter stream does not show whether something buffers it
FEW_TOKENS = 24
BURST_MS = 0.2  # between two events: no engine is that fast, only events that were buffered
FEW_AT_ONCE, USUAL_BATCH = 4, 16


class Streams(Tools):
    """They compare with the answers of the probes chat and tool-call."""

    def _streaming(self):
        asked = [(self._streamed_text,)]
        if self.tool_call_made is not None:
            asked.append((self._streamed_health,))
        if self.weather_call is not None:
            asked.append((self._streamed_weather, gpt_oss.FORECASTS[2:4]))
        words = self._at_once(*asked)
        if self.tool_call_made is None and "tool-call" in self.results_of:
            words.append("a streamed tool call was not tried, as tool-call returned none")
        return "; ".join(words)

    def _streamed_text(self):
        chat = self.chat_answer

        def ask():
            answer = self.streamed = self._stream(self._body(gpt_oss.SUMS[0].question))
            words = self._number(answer, gpt_oss.SUMS[0].number, causes.WRONG_STREAM)
            again = (answer.content, answer.reasoning)
            if self.standin and chat and (chat.content, chat.reasoning) != again:  # it always answers the same
                raise Failed("complete: %s; streamed: %s" % (chat.content, answer.got), causes.STREAMED_OTHERWISE)
            return words

        words = self._once_more(ask)
        for last in (False,) * (STREAMS - 1) + (True,) if chat and chat.reasoning else ():
            if self.streamed.reasoning:
                break
            if last:
                raise Failed(self.streamed.got, causes.STREAM_REASONING)
            self._once_more(ask)
        return words

    def _streamed_health(self):
        return "tool call: " + self._called_health(self._stream).short

    def _streamed_weather(self, forecasts):
        def ask():
            return self._called_weather(forecasts, self._stream)[0].short

        return "tool call with arguments: " + self._once_more(ask)

    def _long_answer(self):
        """A long list of numbers, complete and streamed."""
        if self.context is not None and self.context < gpt_oss.COUNT_TOKENS + PROMPT_TOKENS:
            raise NotMeasured("a context of %d tokens is too short for a long answer" % self.context)

        def judge(answer):
            self._finished(answer)
            wrong = gpt_oss.counted(answer.content)
            fail_if(wrong, "%s; %s" % (wrong, answer.got), causes.WRONG_COUNT)

        return self._both_ways(self._body(gpt_oss.COUNTING, **self.low), judge)

    def _unbuffered(self):
        """Whether events arrive while the model writes. A short stream does not show this."""
        if self.streamed is None:
            raise NotMeasured("not run: streaming returned no stream")
        for answer in (self.streamed, *self.long_streams):
            if answer.content and flows(answer):
                return tempo(answer)
        if self.standin:
            raise NotMeasured("a stand-in's stream is too short (%s)" % tempo(self.streamed))
        for _try in range(STREAMS):
            answer = self._stream(self._body(gpt_oss.COUNTING, **self.low))
            if flows(answer) is not False:
                break
        if flows(answer) is None:
            raise NotMeasured("the stream is too short (%s)" % tempo(answer))
        fail_if(not flows(answer), tempo(answer), causes.BUFFERED)
        return tempo(answer)

    def _batch(self):
        """Number of parallel requests: twice the engine's batch, so that some requests wait."""
        known = [entry.get("arguments", {}).get(self.engine.batch) for entry in (self.entry, *self.beside)]
        sizes = [int(size) for size in known if str(size).isdigit()]
        return min(gpt_oss.MOST_AT_ONCE, max(FEW_AT_ONCE, 2 * (min(sizes) if sizes else USUAL_BATCH)))

    def _concurrent(self):
        """Different questions in parallel: each answer must belong to its question."""
        sums = gpt_oss.MANY_SUMS[: self._batch()]
        answers = {one.number for one in sums}

        def ask(number, one):
            try:
                answer = (self._stream if number % 2 else self._ask)(self._body(one.question))
                swapped = any(gpt_oss.says_number(answer.content, other) for other in answers - {one.number})
                self._number(answer, one.number, causes.MIXED_UP if swapped else causes.WRONG_TOGETHER)
            except Failed as failure:
                got = "request %d of %d: %s" % (number, len(sums), failure.got)
                raise Failed(got, failure.cause) from failure
            return answer.ms

        def all_at_once():
            times = self._at_once(*((ask, number, one) for number, one in enumerate(sums, 1)))
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
            complete = functools.partial(self._ask, reader=functools.partial(http_client.request, connection=line))
            streamed = functools.partial(self._stream, reader=functools.partial(http_client.stream, connection=line))
            try:
                for number, one in enumerate(gpt_oss.MANY_SUMS[-4:], 1):
                    if number > 1 and line.open is None:
                        raise NotMeasured("the server ends the connection after each answer")
                    try:
                        cause = causes.WRONG_STREAM if number == 2 else causes.WRONG_ANSWER
                        self._sum(one, cause, streamed if number == 2 else complete)
                    except Failed as failure:
                        got = "request %d on one connection: %s" % (number, failure.got)
                        broken = self._here.error in ("reset", "cut", "protocol")
                        raise Failed(got, causes.NOT_OVER_HTTP if broken else failure.cause) from failure
            finally:
                line.close()
            return "4 requests on one connection"

        return self._once_more(ask)


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
