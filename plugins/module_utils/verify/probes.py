# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The acceptance sequence of one server: each probe sends something, judges what comes back and has its own verdict."""

from __future__ import annotations

import json
import time

from ansible_collections.inference.fleet.plugins.module_utils.node import http_client
from ansible_collections.inference.fleet.plugins.module_utils.verify import causes, chat, gpt_oss, workers
from ansible_collections.inference.fleet.plugins.module_utils.verify.asking import (
    CHAT,
    GOT_LIMIT,
    GOT_SHORT,
    LOOK_S,
    MAX_TOKENS,
    PROMPT_TOKENS,
    RESPONSES,
    WARM_UP_FACTOR,
    Failed,
    NotMeasured,
    finished,
)
from ansible_collections.inference.fleet.plugins.module_utils.verify.streams import Streams

QUICK = ("identity", "census", "model-id", "completion")
FULL = (
    "identity", "alive", "census", "model-id", "warm-up", "chat", gpt_oss.RESIDUE_PROBE, "reasoning", "effort",
    "tool-call", "tool-round-trip", "tool-arguments", "tool-result", "system-message", "long-prompt", "sampling",
    "responses", "streaming", "unbuffered", "concurrent", "still-right", "disaggregation",
)  # fmt: skip
NO_CHAT = ("responses", "still-right")  # what is seen there may be of /v1/responses
DISAGGREGATED = ("census", "disaggregation")  # only where a frontend has prefill or decode workers beside it


def probe_names(beside, options):
    """The names of a verdict's probes, in their order; beside: the workers behind the server, [] for most."""
    names = QUICK if options.mode == "quick" else FULL
    names = [name for name in names if beside or name not in DISAGGREGATED]
    return names + ([probe["name"] for probe in options.probes] if options.mode == "full" else [])


class Acceptance(Streams):
    """Runs the sequence against one server. Use it once: results() sends requests and returns the probes' verdicts.

    identify: a function without arguments that returns words for who answers on the port, and raises Failed where that
    is not the planned server.
    """

    def __init__(self, entry, beside, options, identify):
        super().__init__(entry, options)
        self.workers = beside if self.engine.workers else []  # of other engines nothing counts them
        self.identify = identify
        self.chat_sent = None
        self.counts = {}  # what each worker had done before the first completion

    def results(self):
        """[{name, ok, ms, sent, got, cause}] in the order of probe_names()."""
        names = probe_names(self.workers, self.options)

        def of(*wanted):
            return [(name, getattr(self, "_" + name.replace("-", "_"))) for name in wanted if name in names]

        self._lanes(of("identity", "alive", "census", "model-id", "warm-up", "completion"))
        self._lanes(of("chat"), of("effort"))
        self._lanes(
            of("tool-call", "tool-round-trip", "tool-arguments", "tool-result"),
            of("responses", "system-message", "long-prompt"),
            of("sampling"),
        )
        own = [(probe["name"], lambda probe=probe: self._own(probe)) for probe in self.options.probes]
        self._lanes(of("streaming", "unbuffered", "concurrent", "still-right", "disaggregation") +
                    (own if self.options.mode == "full" else []))  # fmt: skip
        residue = [(name, self._residue) for name in names if name == gpt_oss.RESIDUE_PROBE]
        for name, function in of("reasoning") + residue:  # look at all answers
            self._run(name, function, always=name == gpt_oss.RESIDUE_PROBE or self.chat_answer is not None)
        if self._stopped != "identity":
            before = self.results_of["identity"]
            self._run("identity", self._identity, always=True)
            self.results_of["identity"]["ms"] += before["ms"]
        return [self.results_of[name] for name in names]

    # -- is it there ---------------------------------------------------------------------------------------------------

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
        return self._must_be(response, path).describe(GOT_SHORT)

    def _model_id(self):
        response = self._look("/v1/models")
        if response.error:
            self._stop("model-id")
        value = self._must_be(response, "/v1/models").json()
        if not isinstance(chat.dig(value, "data"), list):
            raise Failed(response.describe(GOT_LIMIT), causes.SHAPE)
        cards = chat.items_of(value["data"])
        listed = self.listed = [chat.text_of(card.get("id")) for card in cards]
        if self.model not in listed:
            cause = causes.model_cause(self.model, listed, self.engine)
            if len(listed) == 1:  # the other probes can still tell whether it works under its own name
                self.model = listed[0]
            self._context(cards)
            raise Failed(response.describe(GOT_LIMIT), cause)
        context = self._context(cards)
        beside = ", ".join(name for name in listed if name != self.model)
        return "HTTP 200, lists %s%s%s" % (
            self.model,
            ", context %s" % context if context else "",
            ", and beside it %s" % beside if beside else "",
        )

    def _context(self, cards):
        """The context that the server tells of its model, which bounds what is asked for; None where it tells none."""
        self.context = next((card.get("max_model_len") for card in cards if card.get("id") == self.model), None)
        if not isinstance(self.context, int):
            self.context = None
        else:
            self.max_tokens = max(16, min(MAX_TOKENS, self.context - PROMPT_TOKENS))
        return self.context

    def _warm_up(self):
        self.counts = self._counts()
        answer, response = self._ask(self._body(gpt_oss.WARM_UP), WARM_UP_FACTOR * self.options.timeout)
        return "first completion after %d ms, finish_reason %s" % (response.ms, answer.finish_reason)

    def _chat(self):
        def ask():
            answer, response = self._ask(self._body(gpt_oss.ARITHMETIC))
            self.chat_answer, self.chat_sent = answer, self._here.sent
            got = response.describe(GOT_LIMIT)
            self._finished(answer, got)
            note = self._right(answer.content, gpt_oss.SUMS[0].number, got, causes.WRONG_ANSWER)
            return note + response.describe(GOT_SHORT)

        return self._once_more(ask)

    def _completion(self):
        words = self._once_more(lambda: self._sum(gpt_oss.SUMS[0], causes.WRONG_ANSWER))
        self._no_residue(self.seen[-1][2], "the answer")
        return words

    def _sampling(self):
        """Away from temperature 1, and with what the server takes where a request says nothing."""
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

        asked = [
            lambda what=what, more=more, one=one: self._once_more(lambda: ask(what, more, one))
            for (what, more), one in zip(kinds, gpt_oss.SUMS[1:4])
        ]
        return "; ".join("%s: %s" % (kind[0], words) for kind, words in zip(kinds, self._at_once(*asked)))

    # -- what all answers show -----------------------------------------------------------------------------------------

    def _residue(self):
        if not self.seen:
            raise NotMeasured("not run: no probe brought an answer to look at")
        for probe, sent, answer in self.seen:
            self._here.sent = sent
            self._no_residue(answer, "the answer to " + probe)
        self._here.sent = None
        return "none in %d answers" % len(self.seen)

    def _reasoning(self):
        """Models are sampled and skip it sometimes: one answer with reasoning is enough."""
        if self.chat_answer is None:
            raise NotMeasured("not run: chat brought no answer")
        self._here.sent = self.chat_sent
        answers = [self.chat_answer, *(answer for probe, _sent, answer in self.seen if probe not in NO_CHAT)]
        found = next((answer for answer in answers if answer.reasoning), None)
        flags = self.engine.no_reasoning
        if found is None:
            raise Failed(
                "neither %s in any of %d answers" % (" nor ".join(gpt_oss.REASONING_FIELDS), len(answers)), flags
            )
        for answer in answers:
            text, content = answer.reasoning_text.strip(), answer.content.strip()
            if len(text) > 20 and content.startswith(text):
                raise Failed("the content begins with the reasoning: %s" % http_client.cut(content, GOT_SHORT), flags)
        got = "%s, %d characters" % (" and ".join(found.reasoning), len(found.reasoning_text.strip()))
        expected = self.entry.get("reasoning_field")
        if expected and expected not in found.reasoning:
            got += " (the plan expects the name %s; this engine version uses the other)" % expected
        return got

    def _effort_body(self, level):
        return gpt_oss.effort(level, self.options.effort_parameter)

    def _effort(self):
        tried = []
        for question in gpt_oss.EFFORT_QUESTIONS:
            bodies = [self._body(question, **self._effort_body(level)) for level in (gpt_oss.LOW, gpt_oss.HIGH)]
            asked = self._at_once(*[lambda body=body: self._ask(body) for body in bodies])
            low, high = asked[0][0], asked[1][0]
            unit, sizes = "characters", (low.length, high.length)
            if low.completion_tokens and high.completion_tokens:
                unit, sizes = "tokens", (low.completion_tokens, high.completion_tokens)
            tried.append("%s %d, %s %d %s" % (gpt_oss.LOW, sizes[0], gpt_oss.HIGH, sizes[1], unit))
            self.low = self._effort_body(gpt_oss.LOW)
            if sizes[1] > sizes[0]:
                return "; ".join(tried)
        if self.standin:
            raise NotMeasured("not measurable on a stand-in: it has not learned to think longer", "; ".join(tried))
        if low.finish_reason == "length":  # both are as long as the server lets them be
            raise Failed("; ".join(tried), causes.CUT_OFF if low.content.strip() else causes.LENGTH)
        raise Failed("; ".join(tried), causes.effort_cause(self.options.effort_parameter))

    # -- what comes before the question --------------------------------------------------------------------------------

    def _system_message(self):
        def ask():
            body = self._body(gpt_oss.SYSTEM_QUESTION)
            body["messages"].insert(0, {"role": "system", "content": gpt_oss.SYSTEM_MESSAGE})
            answer, response = self._ask(body)
            finished(answer, response.describe(GOT_LIMIT))
            if gpt_oss.WORD.lower() in answer.content.lower():
                return response.describe(GOT_SHORT)
            if self.standin:
                raise NotMeasured("a stand-in need not follow a system message", response.describe(GOT_SHORT))
            raise Failed(response.describe(GOT_LIMIT), causes.WRONG_SYSTEM)

        return self._once_more(ask)

    def _long_prompt(self):
        question, number = gpt_oss.long_prompt()
        if self.context is not None and self.context < gpt_oss.LONG_TOKENS + self.max_tokens:
            raise NotMeasured(
                "a context of %d tokens is too short for a prompt of %d characters" % (self.context, len(question))
            )

        def ask():
            answer, response = self._ask(self._body(question))
            got = response.describe(GOT_LIMIT)
            self._finished(answer, got)
            if gpt_oss.says_number(answer.content, number):
                return "%d characters; %s" % (len(question), response.describe(GOT_SHORT))
            if self.standin:
                raise NotMeasured("a stand-in need not find a fact in a long prompt", response.describe(GOT_SHORT))
            raise Failed(got, causes.WRONG_LONG)

        return self._once_more(ask)

    # -- other ways to ask ---------------------------------------------------------------------------------------------

    def _responses(self):
        if not self.options.responses_api:
            raise NotMeasured("this engine has no /v1/responses (responses_api is false)")
        return self._once_more(lambda: self._respond(gpt_oss.SUMS[0]))

    def _respond(self, one, cause=causes.WRONG_RESPONSES):
        body = {"model": self.model, "input": one.question, "max_output_tokens": self.max_tokens}
        response = self._must_be(self._send("POST", RESPONSES, body), RESPONSES)
        value, got = response.json(), response.describe(GOT_LIMIT)
        output = chat.items_of(chat.dig(value, "output"))
        if any(item.get("type") == "function_call" for item in output):
            raise Failed(got, causes.UNASKED_CALL)
        texts = [
            chat.text_of(part.get("text"))
            for item in output
            if item.get("type") == "message"
            for part in chat.items_of(item.get("content"))
        ]
        text = "".join(texts)
        if not text.strip():
            ran_out = "max_output_tokens" in json.dumps(chat.dig(value, "incomplete_details")) and output
            raise Failed(got, causes.LENGTH if ran_out else causes.NO_MESSAGE)
        status = chat.dig(value, "status")
        if status not in ("completed", None):
            raise Failed(got, causes.RESPONSES_INCOMPLETE if status == "incomplete" else causes.RESPONSES_FAILED)
        self._look_at(chat.Answer(content=text, reasoning={"the output": "".join(reasoning_of(output))}))
        note = self._right(text, one.number, got, cause)
        types = ", ".join(chat.text_of(item.get("type")) for item in output)
        return "%soutput %s: %s" % (note, types, http_client.cut(text, GOT_SHORT))

    def _still_right(self):
        """What was right at the beginning must be right at the end."""
        one, two, three = gpt_oss.SUMS[8:11]
        asked = [
            lambda: self._sum(one, causes.WRONG_LATER),
            lambda: "".join(self._streamed_sum(two, causes.WRONG_LATER)[1:]),
        ]
        if self.results_of["responses"]["ok"]:
            asked.append(lambda: self._respond(three, causes.WRONG_LATER))
        return self._at_once(*asked)[0]

    # -- workers -------------------------------------------------------------------------------------------------------

    def _census(self):
        response = self._must_be(self._look(self.entry["health"]["path"]), self.entry["health"]["path"])
        found = self.engine.workers.count_instances(response.json())
        wanted = {role: sum(1 for worker in self.workers if worker["role"] == role) for role in workers.ROLES}
        got = ", ".join("%s %d of %d" % (role, found[role], wanted[role]) for role in workers.ROLES)
        if any(found[role] < wanted[role] for role in workers.ROLES):
            raise Failed("%s; %s" % (got, response.describe(GOT_LIMIT)), causes.CENSUS)
        return got

    def _disaggregation(self):
        """Workers of each role must have handled requests during the sequence, and moved the KV cache: a decode worker
        alone answers just as well."""
        before, after = self.counts, self._counts()
        if not after:
            raise NotMeasured("not measurable: the workers have no system port (DYN_SYSTEM_PORT) to read counters from")
        before = {name: before.get(name) or workers.Seen() for name in after}
        roles = {worker["name"]: worker["role"] for worker in self.workers}
        prefilled = workers.ROLES[0] in roles.values()
        fetching = [name for name in after if prefilled and roles[name] != workers.ROLES[0]]
        ends = time.monotonic() + workers.LATE_S
        while (
            workers.idle(before, after, roles) or workers.still(before, after, fetching)
        ) and time.monotonic() < ends:
            time.sleep(1)
            after = self._counts()
        unknown = sorted(name for name in after if None in (after[name].requests, before[name].requests))
        got = "%s: %s" % (
            self.engine.workers.REQUESTS,
            ", ".join("%s %d -> %d" % (name, before[name].requests, after[name].requests)
                      for name in after if name not in unknown) or "nowhere",
        )  # fmt: skip
        moved = [(name, after[name].moved) for name in fetching if after[name].moved is not None]
        if moved:
            got += "; %s: %s" % (self.engine.workers.MOVED, ", ".join(
                "%s %d -> %d" % (name, before[name].moved or 0, count) for name, count in moved))  # fmt: skip
        idle, still = workers.idle(before, after, roles), workers.still(before, after, fetching)
        if idle:
            raise Failed(got, causes.idle_cause(idle))
        if still:
            raise Failed(got, causes.still_cause(still))
        if unknown:
            raise NotMeasured("not measurable: no counters at the system port of %s" % ", ".join(unknown), got)
        return got

    def _counts(self):
        """{worker: workers.Seen} of workers with a system port."""
        counts, reader = {}, self.engine.workers
        for worker in self.workers:
            port = worker["ports"].get("system")
            if port:
                base = http_client.base_url(worker["bind"], port)
                response = self._send("GET", "/metrics", timeout=LOOK_S, base=base)
                self._here.error = None  # a worker that is away is no reason to give the frontend up
                text = response.text if response.ok else ""
                counts[worker["name"]] = workers.Seen(reader.request_count(text), reader.bytes_moved(text))
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
            answer = chat.read_answer(value)
            if answer is not None:
                self._look_at(answer)
        # the body's own escapes (\u00d7) must not hide a string from a person who wrote it plainly
        plain = response.text if value is None else response.text + json.dumps(value, ensure_ascii=False)
        missing = [text for text in expect["contains"] if text not in plain]
        if missing:
            raise Failed(got, "the recipe expects the answer to contain %s" % ", ".join(repr(text) for text in missing))
        if expect["field"]:
            found = chat.dig(value, *[int(step) if step.isdigit() else step for step in expect["field"].split(".")])
            if not found:
                if answer_ran_out(value):
                    raise Failed(got, causes.LENGTH)
                raise Failed(got, "the recipe expects %s in the answer, and it is empty or missing" % expect["field"])
        return response.describe(GOT_SHORT)


def answer_ran_out(value):
    """Whether a chat completion ended because its tokens were used up."""
    return chat.dig(value, "choices", 0, "finish_reason") == "length"


def reasoning_of(output):
    """The texts of the reasoning in the output of a response."""
    for item in output:
        if item.get("type") == "reasoning":
            for part in chat.items_of(item.get("content")) + chat.items_of(item.get("summary")):
                yield chat.text_of(part.get("text"))
