# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Chat completions as gpt-oss servers give them: reading complete and streamed answers of any shape."""

from __future__ import annotations

import json

from ..model import gpt_oss
from ..node.values import count, dig, items_of, text_of
from . import forms


class Answer:
    """One chat answer.

    content: str ("" where it was null or no string); reasoning: {field name: str} of the non-empty ones;
    tool_calls: [{"id", "name", "arguments"}], each value a str or None; finish_reason: str or None;
    completion_tokens: int, None where the server tells no usage. body: the request's, None for one that is not known.
    flaws: what is wrong with the form, [(cause, words)]. streamed: whether it was put together from a stream.
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
        """[(where, text)] of everything in which harmony residue may hide."""
        found = [("content", self.content), *self.reasoning.items()]
        for call in self.tool_calls:
            found += [("tool name", call["name"]), ("tool arguments", call["arguments"])]
        return [(where, text) for where, text in found if text]


def read_answer(value):
    """The Answer in the JSON of a chat completion; None where there is no first choice with a message."""
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
    answer.flaws = forms.of_completion(value, answer)
    return answer


def read_stream(events):
    """Put the chunks of a streamed chat together: a StreamedAnswer. events: [http_client.Event]."""
    answer = Answer()
    answer.streamed = True
    calls = {}
    error = bad = None
    times = []
    form = forms.StreamForm()
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
    the first event that is no JSON object, or None; times: ms of each event that brought a piece of the answer."""

    def __init__(self, answer, error, bad, times):
        self.answer = answer
        self.error = error
        self.bad = bad
        self.times = times


def tool_arguments(call):
    """The arguments of a tool call as a dict; None where they are no JSON object. Nothing at all is no arguments."""
    if not (call["arguments"] or "").strip():
        return {}
    value, wrong = forms.strict(call["arguments"])
    if wrong:
        return None
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def arguments_text(value):
    """The arguments of a call as a str or None; clients cannot read an object in their place, unless it is empty."""
    if isinstance(value, str):
        return value or None
    return "not a string: %s" % json.dumps(value) if value else None


def _merge_call(calls, delta):
    """Add one delta of a streamed tool call to calls (index -> call); returns the text that it brought."""
    index = delta.get("index") if isinstance(delta.get("index"), int) else 0
    call = calls.setdefault(index, {"id": None, "name": None, "arguments": None})
    call["id"] = call["id"] or text_of(delta.get("id")) or None
    name, arguments = (text_of(dig(delta, "function", key)) for key in ("name", "arguments"))
    call["name"] = call["name"] or name or None
    call["arguments"] = (call["arguments"] or "") + arguments or None
    return name + arguments
