# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The acceptance sequence of a server: each probe sends requests and judges the answers."""

from __future__ import annotations

import json
import re
import time

from ..host import http_client
from ..host.values import count
from ..model import gpt_oss
from ..servers import causes
from . import chat, families
from .asking import CHAT, GOT_LIMIT, GOT_SHORT, LOOK_S, PROMPT_TOKENS, WARM_UP_FACTOR, Failed, NotMeasured, fail_if
from .families import Families

QUICK = ("identity", "census", "model-id", "api-key", "completion")
FULL = (
    "identity", "alive", "census", "model-id", "context", "api-key", "warm-up", "adapters", "chat",
    gpt_oss.RESIDUE_PROBE, "form", "echo", "reasoning", "effort", "tool-call", "tool-round-trip", "tool-arguments",
    "tool-result", "second-tool-round", "tool-choice", "system-message", "developer-message", "multi-turn",
    "long-prompt", "long-answer", "exact-text", "sampling", "stop-sequence", "responses", "responses-stream",
    "responses-tools", "streaming", "unbuffered", "keep-alive", "concurrent", "still-right", "disaggregation",
)  # fmt: skip
NAMES = tuple(dict.fromkeys((*QUICK, *FULL, *(name for names in families.FULL.values() for name in names))))
PAIRS = 6  # of low and high effort, and as many again if they show no difference
# By the number of pairs: the share of comparisons in which high is longer. From the first share on that is no
# coincidence (less than one in 500); up to the second share it is.
CERTAIN = {1: 1.0, PAIRS: 1.0, 2 * PAIRS: 0.85}
CHANCE = {1: 0.5, PAIRS: 0.66, 2 * PAIRS: 0.76}
NO_CHAT = (
    "responses",
    "responses-stream",
    "responses-tools",
    "still-right",
)  # what is seen there may be of /v1/responses
# What a stand-in has not learned.
UNLEARNED = (
    "tool-arguments", "system-message", "developer-message", "multi-turn", "long-prompt", "long-answer", "exact-text",
    "embedding-order",
)  # fmt: skip
DISAGGREGATED = ("census", "disaggregation")  # only for a frontend with prefill or decode workers


def probe_names(entry, beside, options):
    """The names of a verdict's probes, in their order. beside: the workers of a frontend, or []."""
    family, quick = entry.get("family"), options.mode == "quick"
    names = families.QUICK.get(family, QUICK) if quick else families.FULL.get(family, FULL)
    names = [name for name in names if family is None or families.applies(name, (entry, *beside))]
    names = [name for name in names if beside or name not in DISAGGREGATED]
    names = [name for name in names if options.api_key or name != "api-key"]
    names = [name for name in names if entry.get("adapters") or name != "adapters"]
    return names + ([probe["name"] for probe in options.probes] if options.mode == "full" else [])


class Acceptance(Families):
    """Runs the sequence against one server. Use it once: results() sends requests and returns the probes' verdicts.

    identify: a function without arguments that returns a description of the process that answers on the port. It raises
    Failed if that is not the planned server.
    """

    def __init__(self, entry, beside, options, identify):
        super().__init__(entry, options)
        self.beside = beside
        self.workers = beside if self.engine.workers else []  # of other engines nothing counts them
        self.identify = identify
        self.counts = {}  # what each worker had done before the first completion

    def results(self):
        """[{name, ok, ms, sent, got, cause}] in the order of probe_names()."""
        names = probe_names(self.entry, self.workers, self.options)

        def of(*wanted):
            return [(name, self._probe(name)) for name in wanted if name in names]

        self._lanes(of("identity", "alive", "census", "model-id", "context", "api-key", "warm-up", "adapters",
                       "completion", "embedding", "embedding-order", "embedding-repeat"))  # fmt: skip
        self._lanes(of("chat"), of("effort"))
        self._lanes(
            of("tool-call", "tool-round-trip", "tool-arguments", "tool-result", "second-tool-round", "tool-choice"),
            of("responses", "responses-stream", "responses-tools"),
            of("system-message", "developer-message", "multi-turn", "json-schema", "stop-sequence"),
            of("sampling", "long-prompt"),
            of("exact-text", "long-answer", "keep-alive"),
        )
        own = [(probe["name"], lambda probe=probe: self._own(probe)) for probe in self.options.probes]
        self._lanes(of("streaming", "unbuffered", "concurrent", "still-right", "disaggregation") +
                    (own if self.options.mode == "full" else []))  # fmt: skip
        residue = [(name, self._residue) for name in names if name == gpt_oss.RESIDUE_PROBE]
        for name, function in of("form", "echo", "reasoning") + residue:  # these check all answers
            self._run(name, function, always=name != "reasoning" or self.chat_answer is not None)
        if self._stopped != "identity":
            before = self.results_of["identity"]
            self._run("identity", self._identity, always=True)
            self.results_of["identity"]["ms"] += before["ms"]
        return [self.results_of[name] for name in names]

    def _probe(self, name):
        if self.standin and name in UNLEARNED:
            return self._unlearned
        return getattr(self, "_" + name.replace("-", "_"))

    def _unlearned(self):
        raise NotMeasured("a stand-in has not learned this")

    # -- availability --------------------------------------------------------------------------------------------------

    def _identity(self):
        try:
            return self.identify()
        except Failed:
            self._stop("identity")
            raise

    def _alive(self):
        path = self.entry["health"]["path"]
        response = self._look(path)
        if response.error or response.status >= 500:
            self._stop("alive")
        return self._must_be(response, path, response.status if response.healthy else 200).describe(GOT_SHORT)

    def _model_id(self):
        response = self._look("/v1/models")
        if response.error:
            self._stop("model-id")
        value = self._must_be(response, "/v1/models").json()
        fail_if(not isinstance(chat.dig(value, "data"), list), response.describe(GOT_LIMIT), causes.SHAPE)
        cards = chat.items_of(value["data"])
        listed = self.listed = [chat.text_of(card.get("id")) for card in cards]
        if self.model not in listed:
            cause = causes.model_cause(self.model, listed, self.engine)
            if len(listed) == 1:  # the other probes can still show whether it works under its own name
                self.model = listed[0]
            self._limit_tokens(cards)
            raise Failed(response.describe(GOT_LIMIT), cause)
        context = self._limit_tokens(cards)
        beside = ", ".join(name for name in listed if name != self.model)
        return "HTTP 200, lists %s%s%s" % (
            self.model,
            ", context %s" % context if context else "",
            ", and in addition %s" % beside if beside else "",
        )

    def _limit_tokens(self, cards):
        """The listed context of the model, which limits max_tokens, or None."""
        card = next((card for card in cards if card.get("id") == self.model), {})
        self.context = listed_context(card)
        if self.context:
            self.max_tokens = max(16, min(self.most_tokens, self.context - PROMPT_TOKENS))
        return self.context

    def _context(self):
        planned = planned_context(self.entry["arguments"].get(self.engine.context_length, ""))
        if not planned or not self.context:
            raise NotMeasured("not measurable: %s" % (
                "the plan leaves it to the engine" if self.context else "the server does not list it"))  # fmt: skip
        got = "planned %d, listed %d" % (planned, self.context)
        fail_if(planned != self.context, got, causes.OTHER_CONTEXT)
        return "%d tokens" % planned

    def _warm_up(self):
        self.counts = self._counts()
        answer = self._ask(self._body(gpt_oss.WARM_UP), WARM_UP_FACTOR * self.options.timeout)
        return "first completion after %d ms, finish_reason %s" % (answer.ms, answer.finish_reason)

    def _adapters(self):
        """Each LoRA adapter is listed and answers; how it answers is its own."""
        missing = [name for name in self.entry["adapters"] if name not in (self.listed or ())]
        fail_if(missing, "not listed: %s" % ", ".join(missing), causes.ADAPTER_MISSING)
        for name in self.entry["adapters"]:
            body = {**self._body(gpt_oss.WARM_UP), "model": self.engine.adapter_model(self.entry, name)}
            self._answer_in(self._send("POST", CHAT, body, WARM_UP_FACTOR * self.options.timeout))
        return "answers of %s" % ", ".join(self.entry["adapters"])

    def _chat(self):
        def ask():
            self.chat_answer = self._ask(self._body(gpt_oss.ARITHMETIC))
            return self._number(self.chat_answer, gpt_oss.SUMS[0].number, causes.WRONG_ANSWER)

        return self._once_more(ask)

    def _completion(self):
        try:
            return self._once_more(self._sum, gpt_oss.SUMS[0], causes.WRONG_ANSWER)
        finally:
            self._judge_all()  # an error in the form explains more than a wrong answer

    def _sampling(self):
        """Other temperatures than 1, and the server's defaults."""
        kinds = (
            ("temperature 0", {"temperature": 0}),
            ("temperature 0.6, top_p 0.95", {"temperature": 0.6, "top_p": 0.95}),
            ("nothing said", dict.fromkeys(("temperature", "top_p", "max_tokens"))),
        )

        def ask(what, more, one):
            try:
                return self._sum(one, causes.WRONG_SAMPLING, **more)
            except Failed as failure:
                raise Failed("%s: %s" % (what, failure.got), failure.cause) from failure

        asked = ((self._once_more, ask, *kind, one) for kind, one in zip(kinds, gpt_oss.SUMS[1:4]))
        return "; ".join("%s: %s" % (kind[0], words) for kind, words in zip(kinds, self._at_once(*asked)))

    # -- properties of all answers -------------------------------------------------------------------------------------

    def _residue(self):
        # streams have a separate probe
        return self._all_of(lambda one: None if one.streamed else self._residue_in(one), "none in %d answers")

    def _reasoning(self):
        """One answer with reasoning is sufficient, because models skip it sometimes."""
        if self.chat_answer is None:
            raise NotMeasured("not run: chat returned no answer")
        self._here.sent = self.chat_answer.sent
        answers = [self.chat_answer, *(one for one in self.seen if one.probe not in NO_CHAT and not one.streamed)]
        found = next((answer for answer in answers if answer.reasoning), None)
        flags = causes.NO_REASONING if self.family else self.engine.no_reasoning
        if found is None:
            raise Failed(
                "neither %s in any of %d answers" % (" nor ".join(gpt_oss.REASONING_FIELDS), len(answers)), flags
            )
        if not self.family:
            self._reasoning_apart()
        self._here.sent = self.chat_answer.sent
        got = "%s, %d characters" % (" and ".join(found.reasoning), len(found.reasoning_text.strip()))
        expected = self.entry.get("reasoning_field")
        if expected and expected not in found.reasoning:
            got += " (the plan expects the name %s; this engine version uses the other)" % expected
        return got

    def _effort_body(self, level):
        return gpt_oss.effort(level, self.options.effort_parameter)

    def _effort(self):
        """Several questions, each with low and with high effort. The length of one answer proves nothing, since models
        are sampled. The ranks of all lengths do (Mann and Whitney's U): if the effort is ignored, all answers with high
        effort are longer in one of 924 sequences."""
        lengths, tried = {gpt_oss.LOW: [], gpt_oss.HIGH: []}, ""
        rounds = (gpt_oss.EFFORT_QUESTIONS[:PAIRS], gpt_oss.EFFORT_QUESTIONS[PAIRS:])
        for questions in [gpt_oss.EFFORT_QUESTIONS[:1]] if self.standin else rounds:  # a stand-in is not sampled
            levels = [(level, question) for question in questions for level in (gpt_oss.LOW, gpt_oss.HIGH)]
            bodies = [self._body(question, **self._effort_body(level)) for level, question in levels]
            asked = self._at_once(*((self._ask, body) for body in bodies))
            for (level, _question), answer in zip(levels, asked):
                lengths[level].append(answer.length)
                answer.body = None  # a long answer may well think aloud
            self.low = self._effort_body(gpt_oss.LOW)
            tried = "; ".join("%s %s characters" % (level, " ".join(map(str, lengths[level]))) for level in lengths)
            if all(answer.finish_reason == "length" for answer in asked[::2]):  # as long as the server lets them be
                cut = any(answer.content.strip() for answer in asked[::2])
                raise Failed(tried, causes.CUT_OFF if cut else causes.LENGTH)
            works = longer(lengths[gpt_oss.LOW], lengths[gpt_oss.HIGH])
            if works:
                return tried
            if self.standin:
                raise NotMeasured("not measurable on a stand-in: it has not learned to think longer", tried)
            fail_if(works is False, tried, causes.effort_cause(self.options.effort_parameter))
        raise NotMeasured("not measurable: the lengths of the answers do not distinguish low from high effort", tried)

    # -- other forms of requests ---------------------------------------------------------------------------------------

    def _still_right(self):
        """Answers at the end must be right as well."""
        one, two, three = gpt_oss.SUMS[8:11]
        asked = [(self._sum, one, causes.WRONG_LATER), (self._sum, two, causes.WRONG_LATER, self._stream)]
        if self.results_of.get("responses", {}).get("ok"):
            asked.append((self._respond, three, causes.WRONG_LATER))
        return self._once_more(lambda: self._at_once(*asked)[0])

    # -- workers -------------------------------------------------------------------------------------------------------

    def _census(self):
        response = self._must_be(self._look(self.entry["health"]["path"]), self.entry["health"]["path"])
        found = self.engine.workers.count_instances(response.json())
        wanted = {role: sum(1 for worker in self.workers if worker["role"] == role) for role in ROLES}
        got = ", ".join("%s %d of %d" % (role, found[role], wanted[role]) for role in ROLES)
        lacks = any(found[role] < wanted[role] for role in ROLES)
        fail_if(lacks, "%s; %s" % (got, response.describe(GOT_LIMIT)), causes.CENSUS)
        return got

    def _disaggregation(self):
        """Workers of each role must have handled requests during the sequence, and moved the KV cache: a decode worker
        alone answers just as well."""
        after = self._counts()
        if not after:
            raise NotMeasured("not measurable: the workers have no system port (DYN_SYSTEM_PORT) to read counters from")
        before = {name: self.counts.get(name) or (None, None) for name in after}
        roles = {worker["name"]: worker["role"] for worker in self.workers}
        ends = time.monotonic() + LATE_S
        while unused(before, after, roles) and time.monotonic() < ends:
            time.sleep(1)
            after = self._counts()
        got, words = [], "%s %d -> %d"
        done = {name: (before[name][0], count) for name, (count, _moved) in after.items()}
        unknown = sorted(name for name, counts in done.items() if None in counts)
        counted = [words % (name, *counts) for name, counts in done.items() if name not in unknown]
        got.append("%s: %s" % (self.engine.workers.REQUESTS, ", ".join(counted) or "nowhere"))
        moved = [words % (name, before[name][1] or 0, after[name][1]) for name in fetching(after, roles)]
        got += ["%s: %s" % (self.engine.workers.MOVED, ", ".join(moved))] if moved else []
        cause = unused(before, after, roles)
        fail_if(cause, "; ".join(got), cause)
        if unknown:
            words = "not measurable: no counters at the system port of %s"
            raise NotMeasured(words % ", ".join(unknown), "; ".join(got))
        return "; ".join(got)

    def _counts(self):
        """{worker: (handled requests, fetched bytes of KV cache)} of workers with a system port; None if it does not
        count them."""
        counts, reader = {}, self.engine.workers
        for worker in self.workers:
            port = worker["ports"].get("system")
            if port:
                base = http_client.base_url(worker["bind"], port)
                response = self._send("GET", "/metrics", timeout=LOOK_S, base=base)
                self._here.error = None  # an unavailable worker is no reason to stop probing the frontend
                text = response.text if response.ok else ""
                counts[worker["name"]] = reader.request_count(text), reader.bytes_moved(text)
        return counts

    # -- the recipe's own probes ---------------------------------------------------------------------------------------

    def _own(self, probe):
        path, expect = probe["path"], probe["expect"]
        if probe["body"] is None:
            response = self._send("GET", path)
        else:
            response = self._send("POST", path, dict({"model": self.model}, **probe["body"]))
        self._must_be(response, path, expect["status"])
        got, value = response.describe(GOT_LIMIT), response.json()
        if path == CHAT:
            answer = chat.read_answer(response.text)
            if answer is not None:
                self._look_at(answer)
        # the body's own escapes (\u00d7) must not hide a string from a person who wrote it plainly
        plain = response.text if value is None else response.text + json.dumps(value, ensure_ascii=False)
        missing = [text for text in expect["contains"] if text not in plain]
        fail_if(missing, got, "the recipe expects the answer to contain %s" % ", ".join(map(repr, missing)))
        if expect["field"]:
            steps = [int(step) if step.lstrip("-").isdigit() else step for step in expect["field"].split(".")]
            found = chat.dig(value, *steps)
            if not found:
                fail_if(chat.dig(value, "choices", 0, "finish_reason") == "length", got, causes.LENGTH)
                raise Failed(got, "the recipe expects %s in the answer, and it is empty or missing" % expect["field"])
        return response.describe(GOT_SHORT)


def longer(low, high):
    """Whether answers with high effort are longer; None if that may be chance, False if they are not."""
    pairs = len(low) * len(high)
    above = sum((two > one) + (two == one) / 2 for one in low for two in high)
    if above >= CERTAIN[len(low)] * pairs:
        return True
    return False if above <= CHANCE[len(low)] * pairs else None


def listed_context(card):
    """The tokens that the card of a model in /v1/models names, or None."""
    told = (count(card.get(name)) for name in ("max_model_len", "context_window"))
    return next((tokens for tokens in told if tokens), None)


def planned_context(value):
    """The tokens in an argument such as 4096, 128k or 128K, or None if the engine decides."""
    found = re.fullmatch(r"(\d+)([kKmM]?)", str(value))
    units = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20}
    return int(found.group(1)) * units[found.group(2)] or None if found else None


# ---- workers of a frontend


ROLES = ("prefill", "decode")
LATE_S = 12  # a worker's counters follow up to 10 seconds later


def workers_of(entry, entries):
    """The prefill and decode workers in `entries` of a frontend; [] for other roles."""
    if entry["role"] != "frontend":
        return []
    return [other for other in entries if other["role"] in ROLES]


def unused(before, after, roles):
    """The cause if workers were not used between two readings {name: (requests, moved)}, else None.

    roles: {name: role}. A router may use only some of several workers of a role. A worker that does not count requests
    or bytes is ignored.
    """
    known = [name for name in after if None not in (after[name][0], before[name][0])]
    busy = {roles[name] for name in known if after[name][0] > before[name][0]}
    idle = [name for name in known if roles[name] not in busy]
    if idle:
        return causes.idle_cause(idle)
    asked = [name for name in fetching(after, roles) if (after[name][0] or 0) > (before[name][0] or 0)]
    still = [name for name in asked if after[name][1] <= (before[name][1] or 0)]
    return causes.still_cause(still) if still else None


def fetching(after, roles):
    """Names of the workers that fetch KV cache from prefill workers, and count its bytes."""
    others = [name for name in after if after[name][1] is not None and roles[name] != ROLES[0]]
    return others if ROLES[0] in roles.values() else []
