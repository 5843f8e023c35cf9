# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chat completions: complete and streamed answers of any shape, and the flaws of their form.

A complete answer is read like a stream with one chunk. Flaws are (cause, words): no strict JSON, several choices, no
end, usage that does not add up, calls without distinct ids. Other modules judge the content.
"""

from __future__ import annotations

import collections
import json

from ..host.values import count, dig, items_of, text_of
from ..model import gpt_oss
from ..servers import causes

ENDS = frozenset(("stop", "length", "tool_calls", "function_call", "content_filter"))
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
CHARACTERS = 40  # of text for each token, at most: no vocabulary has many tokens of that length
SPACES = 0.04  # share of spaces in English text, at least; the usual share is four times as much
GROWING = 4  # deltas that each repeat the previous deltas, until that is no coincidence
# {where a choice has its answer: roles in it}; a stream may repeat the role or leave it out
COMPLETE, STREAMED = "message", "delta"
ASSISTANT = {COMPLETE: ("assistant",), STREAMED: ("assistant", "", None)}


class Answer:
    """One chat answer.

    content: str ("" if it was null or no string); reasoning: {field name: str} of the fields that are not empty;
    tool_calls: [{"id", "name", "arguments"}], each value a str or None; finish_reason: str or None. flaws: what is
    wrong with the form, [(cause, words)]. streamed: whether it was assembled from a stream; times: ms of each event
    with a piece of it; bad: the data of the first event that is no JSON object; error: the server's error in it.

    Of the sequence: probe and sent, its request; body, if it is known what the answer cannot contain; got and short,
    descriptions behind a failing and a passing probe; ms until its end.
    """

    body = bad = error = probe = sent = None
    streamed = False
    got = short = ""
    ms = 0

    def __init__(self, content="", reasoning=None, tool_calls=None, finish_reason=None):
        self.content = content
        self.reasoning = reasoning or {}
        self.tool_calls = tool_calls or []
        self.finish_reason = finish_reason
        self.flaws = []
        self.times = []

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


def read_answer(text):
    """The Answer in a chat completion, or None if it has no first choice with a message."""
    value, wrong = strict(text)
    if not isinstance(dig(value, "choices", 0, COMPLETE), dict):
        return None
    return _read([(text, value, wrong, 0)], COMPLETE)


def read_stream(events):
    """The Answer in the events of a streamed chat. events: [http_client.Event]."""
    chunks = ((event.data, *strict(event.data), event.ms) for event in events if event.data.strip())
    answer = _read(chunks, STREAMED)
    answer.streamed = True
    return answer


def _read(chunks, part):
    """The Answer in these chunks [(text, its JSON value, why that is not strict, ms)]. part: COMPLETE or STREAMED."""
    answer, calls, ends, usage, found = Answer(), {}, [], None, {}
    pieces = {name: [] for name in ("content", *gpt_oss.REASONING_FIELDS)}
    for text, value, wrong, ms in chunks:
        if not isinstance(value, dict):
            answer.bad = answer.bad or text
            continue
        if value.get("error") or value.get("object") == "error":
            answer.error = json.dumps(value.get("error") or value, ensure_ascii=False)
        if isinstance(value.get("usage"), dict):
            usage = value["usage"]
        indexes = [one.get("index", 0) for one in items_of(value.get("choices"))]
        delta, end = (dig(value, "choices", 0, key) for key in (part, "finish_reason"))
        delta = delta if isinstance(delta, dict) else {}
        role, content = delta.get("role", "assistant"), delta.get("content")
        new = {name: text_of(delta.get(name)) for name in pieces}
        called = items_of(delta.get("tool_calls"))
        for name, piece in new.items():
            pieces[name] += [piece] if piece else []
        merged = [
            _merge_call(calls, position if part == COMPLETE else count(one.get("index")) or 0, one)
            for position, one in enumerate(called)
        ]
        if any(new.values()) or any(text for text, _other in merged):
            answer.times.append(ms)
        for cause, words in (
            (causes.NOT_STRICT, wrong),
            (causes.ERROR_INSIDE, part == COMPLETE and answer.error and answer.error[:200]),
            (causes.OTHER_CHOICE, indexes not in ([], [0]) and "indexes %s" % indexes),
            (causes.SHAPE, role not in ASSISTANT[part] and "role %r" % (role,)),
            (causes.SHAPE, not isinstance(content, (str, type(None))) and "content %r" % (content,)),
            (causes.AFTER_END, ends and (any(new.values()) or called) and text[:200]),
            (causes.AFTER_END, ends and end and end != ends[0] and "finish_reason %s, then %s" % (ends[0], end)),
            *((causes.OTHER_ID, other) for _text, other in merged),
        ):
            if words:
                found.setdefault(cause, words)
        ends += [end] if end else []
    for name, given in pieces.items():
        grown = sum(len(one) > 1 and two.startswith(one) for one, two in zip(given, given[1:]))
        if grown >= max(GROWING, len(given) // 2) or (len(given) > 2 and grown == len(given) - 1):
            found.setdefault(causes.CUMULATIVE, "%s: %s" % (name, given[-1][:100]))
    answer.content, *reasoning = map("".join, pieces.values())
    answer.reasoning = {name: text for name, text in zip(gpt_oss.REASONING_FIELDS, reasoning) if text}
    answer.tool_calls = [calls[index] for index in sorted(calls)]
    answer.finish_reason = ends[-1] if ends else None
    answer.flaws = [*found.items(), *_of_answer(answer), *_of_usage(usage, answer)]
    return answer


def _merge_call(calls, index, one):
    """Add a tool call, or a delta of one, to calls {index: call}. Return (its text, how its id changes or None)."""
    call = calls.setdefault(index, {"id": None, "name": None, "arguments": None})
    identity, name = text_of(one.get("id")), text_of(dig(one, "function", "name"))
    arguments = arguments_text(dig(one, "function", "arguments")) or ""
    other = "%s, then %s" % (call["id"], identity) if identity and call["id"] not in (None, identity) else None
    call["id"] = call["id"] or identity or None
    call["name"] = call["name"] or name or None
    call["arguments"] = (call["arguments"] or "") + arguments or None
    return name + arguments, other


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


# -- the form of answers -----------------------------------------------------------------------------------------------


def strict(text):
    """(the JSON value, None), or (the readable part, the reason why it is not strict JSON)."""
    wrong = []

    def constant(name):
        wrong.append("%s is no JSON" % name)

    def pairs(items):
        keys = collections.Counter(key for key, _value in items)
        wrong.extend("the key %r is there twice" % key for key, times in keys.items() if times > 1)
        return dict(items)

    try:
        value = json.loads(text, parse_constant=constant, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return None, "no JSON"
    return value, "; ".join(wrong) or None


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
    prompt, tokens, total = map(given.get, USAGE)
    wrong = (
        any(count(value) is None or value < 0 for value in given.values())
        or prompt == 0
        or (len(given) == 3 and prompt + tokens != total)
        or (tokens is not None and answer.length > CHARACTERS * tokens)
    )
    return [(causes.USAGE, "%s for %d characters" % (json.dumps(given), answer.length))] if wrong else []
