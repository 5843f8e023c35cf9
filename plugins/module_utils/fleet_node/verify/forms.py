# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form of answers: strict JSON, one choice, an end, usage that adds up, calls that can be told apart.

Flaws are (cause, words). What the answer says is judged elsewhere.
"""

from __future__ import annotations

import json

from ..model import gpt_oss
from ..node.values import count, dig, items_of, text_of
from ..servers import causes

ENDS = frozenset(("stop", "length", "tool_calls", "function_call", "content_filter"))
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
CHARACTERS = 40  # of a text for each token, at most: no vocabulary has many tokens as long as that
SPACES = 0.04  # of a text in English, at least; it has four times as many
GROWING = 4  # deltas that each repeat what came before, until it is no chance


def strict(text):
    """(the JSON value, None), or (what can be read of it, why it is not JSON that every client reads)."""
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


def of_text(response):
    """Flaws of a body of JSON as it came."""
    if not response.utf8:
        return [(causes.NOT_UTF8, response.describe(200))]
    wrong = strict(response.text)[1]
    return [(causes.NOT_STRICT, wrong)] if wrong else []


def of_completion(value, answer):
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
    """The form of a stream, chunk after chunk."""

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
        """The next chunk; data: its text."""
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
        """[(cause, words)] once all chunks were seen."""
        for name, pieces in self._pieces.items():
            grown = sum(len(one) > 1 and two.startswith(one) for one, two in zip(pieces, pieces[1:]))
            if grown >= max(GROWING, len(pieces) // 2) or (len(pieces) > 2 and grown == len(pieces) - 1):
                self._wrong(causes.CUMULATIVE, "%s: %s" % (name, pieces[-1][:100]))
        self.completion_tokens = count(dig(self._usage, "completion_tokens"))
        return [*self._found.items(), *_of_answer(answer), *_of_usage(self._usage, answer)]
