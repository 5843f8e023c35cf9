# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chat completions of gpt-oss servers: complete and streamed answers of any shape, and the flaws of their form.

Flaws are (cause, words): no strict JSON, several choices, no end, usage that does not add up, calls without distinct
ids. Other modules judge the content.
"""

from __future__ import annotations

import json

from ..host.values import count, dig, items_of, text_of
from ..model import gpt_oss
from ..servers import causes

ENDS = frozenset(("stop", "length", "tool_calls", "function_call", "content_filter"))
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
CHARACTERS = 40  # of text for each token, at most: no vocabulary has many tokens of that length
SPACES = 0.04  # share of spaces in English text, at least; the usual share is four times as much
GROWING = 4  # deltas that each repeat the previous deltas, until that is no coincidence


class Answer:
    """One chat answer.

    content: str ("" if it was null or no string); reasoning: {field name: str} of the fields that are not empty;
    tool_calls: [{"id", "name", "arguments"}], each value a str or None; finish_reason: str or None;
    completion_tokens: int, None if the server reports no usage. body: the request's, None if that is not known.
    flaws: what is wrong with the form, [(cause, words)]. streamed: whether it was assembled from a stream.
    """

    body = None
    streamed = False

    def __init__(self, content="", reasoning=None, tool_calls=None, finish_reason=None, completion_tokens=None):
        self.content = content
        self.reasoning = reasoning or {}
        self.tool_calls = tool_calls or []
        self.finish_reason = finish_reason
        self.completion_tokens = completion_tokens
        self.flaws = []

    @property
    def reasoning_text(self):
        return next(iter(self.reasoning.values()), "")

    @property
    def length(self):
        """Characters of reasoning and content."""
        return len(self.reasoning_text) + len(self.content)

    def texts(self):
        """[(place, text)] of all parts that may contain residue."""
        found = [("content", self.content), *self.reasoning.items()]
        for call in self.tool_calls:
            found += [("tool name", call["name"]), ("tool arguments", call["arguments"])]
        return [(where, text) for where, text in found if text]


def read_answer(value):
    """The Answer in the JSON of a chat completion, or None if it has no first choice with a message."""
    message = dig(value, "choices", 0, "message")
    if not isinstance(message, dict):
        return None
    calls = [
        {
            "id": text_of(dig(call, "id")) or None,
            "name": text_of(dig(call, "function", "name")) or None,
            "arguments": arguments_text(dig(call, "function", "arguments")),
        }
        for call in items_of(message.get("tool_calls"))
    ]
    answer = Answer(
        content=text_of(message.get("content")),
        reasoning={name: message[name] for name in gpt_oss.REASONING_FIELDS if text_of(message.get(name))},
        tool_calls=calls,
        finish_reason=dig(value, "choices", 0, "finish_reason"),
        completion_tokens=count(dig(value, "usage", "completion_tokens")),
    )
    answer.flaws = flaws_of_completion(value, answer)
    return answer


def read_stream(events):
    """The StreamedAnswer in the events of a streamed chat. events: [http_client.Event]."""
    answer = Answer()
    answer.streamed = True
    calls = {}
    error = bad = None
    times = []
    form = StreamForm()
    for event in events:
        if not event.data.strip():
            continue
        chunk = event.json()
        if not isinstance(chunk, dict):
            bad = bad or event.data
            continue
        if chunk.get("error") or chunk.get("object") == "error":
            error = json.dumps(chunk.get("error") or chunk, ensure_ascii=False)
        form.see(event.data, chunk)
        delta = dig(chunk, "choices", 0, "delta")
        answer.finish_reason = dig(chunk, "choices", 0, "finish_reason") or answer.finish_reason
        if not isinstance(delta, dict):
            continue
        pieces = [text_of(delta.get(name)) for name in ("content", *gpt_oss.REASONING_FIELDS)]
        answer.content += pieces[0]
        for name, piece in zip(gpt_oss.REASONING_FIELDS, pieces[1:]):
            if piece:
                answer.reasoning[name] = answer.reasoning.get(name, "") + piece
        for call in items_of(delta.get("tool_calls")):
            pieces.append(_merge_call(calls, call))
        if any(pieces):
            times.append(event.ms)
    answer.tool_calls = [calls[index] for index in sorted(calls)]
    answer.completion_tokens = form.completion_tokens
    answer.flaws = form.flaws(answer)
    return StreamedAnswer(answer, error, bad, times)


class StreamedAnswer:
    """A streamed chat: answer (Answer); error: what an event named as the server's error, or None; bad: the data of
    the first event that is no JSON object, or None; times: ms of each event with a piece of the answer."""

    def __init__(self, answer, error, bad, times):
        self.answer = answer
        self.error = error
        self.bad = bad
        self.times = times


def tool_arguments(call):
    """The arguments of a tool call as a dict, or None if they are not a JSON object. An empty string is {}."""
    if not (call["arguments"] or "").strip():
        return {}
    value, wrong = strict(call["arguments"])
    if wrong:
        return None
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def arguments_text(value):
    """The arguments of a call as a str or None; clients cannot read an object instead, unless it is empty."""
    if isinstance(value, str):
        return value or None
    return "not a string: %s" % json.dumps(value) if value else None


def _merge_call(calls, delta):
    """Add a delta of a streamed tool call to calls (index -> call), and return its text."""
    index = delta.get("index") if isinstance(delta.get("index"), int) else 0
    call = calls.setdefault(index, {"id": None, "name": None, "arguments": None})
    call["id"] = call["id"] or text_of(delta.get("id")) or None
    name, arguments = (text_of(dig(delta, "function", key)) for key in ("name", "arguments"))
    call["name"] = call["name"] or name or None
    call["arguments"] = (call["arguments"] or "") + arguments or None
    return name + arguments


# -- the form of answers -----------------------------------------------------------------------------------------------


def strict(text):
    """(the JSON value, None), or (the readable part, the reason why it is not strict JSON)."""
    wrong = []

    def constant(name):
        wrong.append("%s is no JSON" % name)

    def pairs(items):
        keys = [key for key, _value in items]
        wrong.extend("the key %r is there twice" % key for key in set(keys) if keys.count(key) > 1)
        return dict(items)

    try:
        value = json.loads(text, parse_constant=constant, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return None, "no JSON"
    return value, "; ".join(wrong) or None


def flaws_of_text(response):
    """Flaws of a received JSON body."""
    if not response.utf8:
        return [(causes.NOT_UTF8, response.describe(200))]
    wrong = strict(response.text)[1]
    return [(causes.NOT_STRICT, wrong)] if wrong else []


def flaws_of_completion(value, answer):
    """Flaws of a chat completion. answer: the chat.Answer in it."""
    found = []
    choices = items_of(value.get("choices"))
    if len(choices) != 1 or choices[0].get("index", 0) != 0:
        found.append((causes.OTHER_CHOICE, "indexes %s" % [one.get("index") for one in choices]))
    if value.get("error"):
        found.append((causes.ERROR_INSIDE, json.dumps(value["error"])[:200]))
    message = dig(value, "choices", 0, "message")
    role, content = message.get("role", "assistant"), message.get("content")
    if role != "assistant":
        found.append((causes.SHAPE, "role %r" % (role,)))
    if content is not None and not isinstance(content, str):
        found.append((causes.SHAPE, "content %r" % (content,)))
    return found + _of_answer(answer) + _of_usage(value.get("usage"), answer)


def _of_answer(answer):
    found = []
    if text_of(answer.finish_reason) not in ENDS:
        found.append((causes.NO_END, "finish_reason %r" % (answer.finish_reason,)))
    if answer.finish_reason == "tool_calls" and not answer.tool_calls:
        found.append((causes.NO_CALLS, "finish_reason tool_calls"))
    ids = [call["id"] for call in answer.tool_calls if call["id"]]
    if len(set(ids)) < len(ids):
        found.append((causes.SAME_ID, ", ".join(ids)))
    for where, text in [("content", answer.content), *answer.reasoning.items()]:
        letters = sum(one.isascii() and one.isalpha() for one in text)
        if letters > 80 and sum(one.isspace() for one in text) < SPACES * letters:
            found.append((causes.NO_SPACES, "%s: %s" % (where, text[:100])))
    return found


def _of_usage(usage, answer):
    if not isinstance(usage, dict):
        return []
    given = {name: usage[name] for name in USAGE if usage.get(name) is not None}
    wrong = [name for name, value in given.items() if count(value) is None or value < 0]
    words = json.dumps(given)
    if wrong:
        return [(causes.USAGE, words)]
    if len(given) == 3 and given["prompt_tokens"] + given["completion_tokens"] != given["total_tokens"]:
        return [(causes.USAGE, words)]
    if given.get("prompt_tokens") == 0:
        return [(causes.USAGE, words)]
    tokens = given.get("completion_tokens")
    if tokens is not None and answer.length > CHARACTERS * tokens:
        return [(causes.USAGE, "%s for %d characters" % (words, answer.length))]
    return []


class StreamForm:
    """Checks the form of a stream by chunks."""

    def __init__(self):
        self.completion_tokens = None
        self._usage = None
        self._ends = []
        self._found = {}
        self._pieces = {}
        self._names = {}

    def _wrong(self, cause, words):
        self._found.setdefault(cause, words)

    def see(self, data, chunk):
        """Check the next chunk; data: its text."""
        wrong = strict(data)[1]
        if wrong:
            self._wrong(causes.NOT_STRICT, wrong)
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        choices = items_of(chunk.get("choices"))
        if len(choices) > 1 or any(one.get("index", 0) != 0 for one in choices):
            self._wrong(causes.OTHER_CHOICE, "indexes %s" % [one.get("index") for one in choices])
        delta = dig(chunk, "choices", 0, "delta")
        delta = delta if isinstance(delta, dict) else {}
        if delta.get("role") not in (None, "", "assistant"):
            self._wrong(causes.SHAPE, "role %r" % (delta["role"],))
        pieces = {name: text_of(delta.get(name)) for name in ("content", *gpt_oss.REASONING_FIELDS)}
        calls = items_of(delta.get("tool_calls"))
        if self._ends and (any(pieces.values()) or calls):
            self._wrong(causes.AFTER_END, data[:200])
        for name, piece in pieces.items():
            if piece:
                self._pieces.setdefault(name, []).append(piece)
        for call in calls:
            index, called = count(call.get("index")) or 0, text_of(call.get("id"))
            if called and self._names.setdefault(index, called) != called:
                self._wrong(causes.OTHER_ID, "%s, then %s" % (self._names[index], called))
        end = dig(chunk, "choices", 0, "finish_reason")
        if end:
            self._ends.append(end)
            if end != self._ends[0]:
                self._wrong(causes.AFTER_END, "finish_reason %s, then %s" % (self._ends[0], end))

    def flaws(self, answer):
        """[(cause, problem)] after the last chunk."""
        for name, pieces in self._pieces.items():
            grown = sum(len(one) > 1 and two.startswith(one) for one, two in zip(pieces, pieces[1:]))
            if grown >= max(GROWING, len(pieces) // 2) or (len(pieces) > 2 and grown == len(pieces) - 1):
                self._wrong(causes.CUMULATIVE, "%s: %s" % (name, pieces[-1][:100]))
        self.completion_tokens = count(dig(self._usage, "completion_tokens"))
        return [*self._found.items(), *_of_answer(answer), *_of_usage(self._usage, answer)]
