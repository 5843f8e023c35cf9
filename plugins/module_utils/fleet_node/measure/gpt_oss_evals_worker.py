# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs gpt_oss.evals as it is, with what it has no option for: datasets of a folder, results in a folder, several
servers, an end to retries, and answers no longer than the server's context.

The interpreter of the tool's environment runs it: python PROGRAM work measure.gpt_oss_evals_worker
DATASETS FOLDER URL[,URL] MAX_TOKENS RETRIES EXAMPLES and the tool's own options.
"""

from __future__ import annotations

import builtins
import itertools
import json
import os
import sys
import threading


class GaveUp(Exception):
    """A request failed as often as it may."""


def main():
    """The tool's main() with its surroundings replaced."""
    import pandas  # here: they are in the tool's environment only
    from gpt_oss.evals import __main__ as tool
    from gpt_oss.evals import report
    from gpt_oss.evals.types import SamplerResponse

    datasets, folder, urls, max_tokens, retries, examples = sys.argv[1:7]
    sys.argv[1:7] = []
    os.makedirs(folder, exist_ok=True)
    pandas.read_csv = _from_folder(pandas.read_csv, datasets)
    pandas.read_json = _from_folder(pandas.read_json, datasets)
    tool.open = _opener(folder)
    if int(examples):
        for name in ("GPQAEval", "AIME25Eval"):
            setattr(tool, name, _few(getattr(tool, name), int(examples)))
    tool.ChatCompletionsSampler = _sampler(tool.ChatCompletionsSampler, SamplerResponse, urls.split(","),
                                           int(max_tokens), int(retries), Answers(folder))  # fmt: skip
    report.map_with_progress = _counting(report.map_with_progress, folder)
    tool.main()


class Answers:
    """answers.jsonl of a folder: a line for each answer as it comes."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "answers.jsonl")
        self.lock = threading.Lock()

    def add(self, line):
        with self.lock, open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def _from_folder(reader, folder):
    """A pandas reader that takes the file of that name in the folder instead of the URL."""
    return lambda url, *args, **kwargs: reader(os.path.join(folder, url.rpartition("/")[2]), *args, **kwargs)


def _opener(folder):
    """open() with the folder instead of /tmp."""

    def opened(path, *args, **kwargs):
        if isinstance(path, str) and path.startswith("/tmp/"):
            path = os.path.join(folder, os.path.basename(path))
        return builtins.open(path, *args, **kwargs)

    return opened


def _few(kind, examples):
    """An evaluation of so many questions, once each."""

    def made(**options):
        return kind(**{**options, "n_repeats": 1, "num_examples": examples})

    return made


def _counting(mapped, folder):
    """map_with_progress() that writes down first how many answers are asked for."""

    def counted(function, items, *args, **kwargs):
        Answers(folder).add({"asked": len(items)})
        return mapped(function, items, *args, **kwargs)

    return counted


def _sampler(kind, response, urls, max_tokens, retries, answers):
    """The tool's sampler, over all servers in turn; what fails for good is the answer "No response (…)."."""

    class Sampler(kind):
        def __init__(self, **options):
            options["max_tokens"] = min(max_tokens, options.get("max_tokens", max_tokens))
            self._clients = None
            super().__init__(**options)

        @property
        def client(self):
            return next(self._clients)

        @client.setter
        def client(self, one):
            if str(one.base_url).rstrip("/") == urls[0].rstrip("/"):
                one.max_retries = 0
                one = [one.with_options(base_url=url) for url in urls]
            self._clients = itertools.cycle(one if isinstance(one, list) else [one])

        def __call__(self, messages):
            local.trial, local.last = 0, ""
            try:
                answer = super().__call__(messages)
            except GaveUp as error:
                answer = response(
                    response_text="No response (%s)." % error,
                    response_metadata={"usage": None},
                    actual_queried_message_list=messages,
                )
            answers.add({"characters": len(answer.response_text), "trials": local.trial + 1})
            return answer

    module, local = sys.modules[kind.__module__], threading.local()

    class Clock:
        """time of the sampler's module: a sleep is one more failure."""

        def __getattr__(self, name):
            return getattr(clock, name)

        def sleep(self, seconds):
            error = sys.exc_info()[1]
            local.trial += 1
            if local.trial >= retries:
                text = " ".join(str(error).split())[:200].rstrip(".")
                raise GaveUp("%s after %d trials: %s" % (type(error).__name__, local.trial, text))
            clock.sleep(min(seconds, 30))

    clock, module.time = module.time, Clock()
    return Sampler
