# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probes of other families of models than the default, whose behaviour is known in detail."""

from __future__ import annotations

import math
import os

from ..host import http_client
from ..host.files import readable_json
from ..host.values import count
from ..model import gpt_oss
from ..servers import causes
from . import chat
from .asking import CHAT, GOT_LIMIT, GOT_SHORT, Failed, NotMeasured, fail_if
from .responses import Responses
from .tools import CHOICE, refused

EMBEDDING, EMBEDDINGS = "embedding", "/v1/embeddings"  # the family; its path
QUICK = {EMBEDDING: ("identity", "model-id", "api-key", "embedding")}
CHAT_PROBES = (
    "identity", "alive", "census", "model-id", "context", "api-key", "warm-up", "adapters", "chat", "form",
    "reasoning", "tool-call",
    "tool-round-trip", "tool-arguments", "tool-result", "system-message", "multi-turn", "json-schema", "sampling",
    "stop-sequence", "streaming", "unbuffered", "keep-alive", "concurrent", "still-right", "disaggregation",
)  # fmt: skip
FULL = {
    "chat": CHAT_PROBES,
    EMBEDDING: ("identity", "alive", "model-id", "context", "api-key", "embedding", "embedding-order",
                "embedding-repeat"),
}  # fmt: skip
PARSED = {"tool": "tool-call-parser", "reasoning": "reasoning-parser"}  # beginnings of probes, and the flag they need
SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer"}},
    "required": ["number"],
    "additionalProperties": False,
}
TEXTS = ("How do I bake bread at home?", "A recipe for home-made bread", "The lunar module landed in the crater")
SAME = 0.99  # cosine of an input's vectors in two batches, whose kernels round differently


def applies(probe, entries):
    """Whether a probe applies to a server of another family: tools and reasoning need their parsers. entries: of the
    server and of its workers."""
    flag = next((flag for word, flag in PARSED.items() if probe.startswith(word)), "")
    return not flag or any(flag in one for entry in entries for one in entry.get("arguments", ()))


def own_probes(given, entry):
    """Those of the recipe's probes that a server can answer: one of embeddings has no chat."""
    return [probe for probe in given if entry.get("family") != EMBEDDING or probe["path"] != CHAT]


class Families(Responses):
    """Probes of structured output and of embeddings."""

    def _json_schema(self):
        one = gpt_oss.SUMS[4]
        wanted = {"type": "json_schema", "json_schema": {"name": "product", "schema": SCHEMA, "strict": True}}
        body = self._body(one.question, response_format=wanted, **self.low)

        def ask():
            response = self._send("POST", CHAT, body)
            if refused(response, CHOICE):
                raise NotMeasured("the engine does not support JSON schemas", response.describe(GOT_SHORT))
            answer = self._answer_in(response)
            if self.standin and answer.finish_reason == "length":
                raise NotMeasured("a stand-in need not end a form that it has not learned", answer.got)
            self._finished(answer)
            number = schema_number(answer.content)
            fail_if(number is None, answer.got, causes.SCHEMA_IGNORED)
            fail_if(number != one.number and not self.standin, answer.got, causes.WRONG_ANSWER)
            return answer.short

        return self._once_more(ask)

    def _vectors(self, texts):
        """The vectors of these inputs in one request, in their order. Fails unless each is a vector."""
        response = self._must_be(
            self._send("POST", EMBEDDINGS, {"model": self.model, "input": list(texts)}), EMBEDDINGS
        )
        items, got = chat.items_of(chat.dig(response.json(), "data") or []), response.describe(GOT_LIMIT)
        fail_if([item.get("index") for item in items] != list(range(len(texts))), got, causes.VECTORS)
        vectors = [item.get("embedding") for item in items]
        valid = all(is_vector(one) for one in vectors) and len({len(one) for one in vectors}) == 1
        fail_if(not valid, got, causes.VECTORS)
        return vectors

    def _embedding(self):
        (vector,) = self._vectors(TEXTS[:1])
        config = readable_json(os.path.join((self.entry["weights"] or [""])[0], "config.json"))
        size = config.get("hidden_size") if isinstance(config, dict) else None
        if size and size != len(vector):
            raise Failed("%d values, hidden_size is %d" % (len(vector), size), causes.VECTOR_SIZE)
        return "%d values" % len(vector)

    def _embedding_order(self):
        question, near, far = self._vectors(TEXTS)
        near, far = cosine(question, near), cosine(question, far)
        got = "similarity %.3f to a sentence of the same subject, %.3f to another" % (near, far)
        fail_if(near <= far, got, causes.VECTOR_ORDER)
        return got

    def _embedding_repeat(self):
        """An input has the same vector alone and in a batch in another order."""
        alone = [self._vectors([text])[0] for text in TEXTS]
        together = self._vectors(TEXTS[::-1])[::-1]
        least = min(cosine(one, other) for one, other in zip(alone, together))
        got = "least similarity of an input to itself: %.4f" % least
        fail_if(least < SAME, got, causes.VECTOR_CHANGES)
        return got


def schema_number(text):
    """The number in an answer that follows SCHEMA, None for another answer."""
    value = http_client.parsed(text)
    return count(value.get("number")) if isinstance(value, dict) and len(value) == 1 else None


def is_vector(value):
    """Whether a value is a list of finite numbers that are not all 0."""
    numbers = isinstance(value, list) and all(isinstance(one, (int, float)) and math.isfinite(one) for one in value)
    return numbers and any(value)


def cosine(one, other):
    """The cosine of the angle between two vectors."""
    lengths = math.sqrt(sum(value * value for value in one)) * math.sqrt(sum(value * value for value in other))
    return sum(left * right for left, right in zip(one, other)) / lengths
