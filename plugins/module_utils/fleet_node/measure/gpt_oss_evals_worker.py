# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs gpt_oss.evals with datasets from a folder, files in another folder instead of /tmp, requests to several servers,
a limit for retries, and answers no longer than the server's context.

The interpreter of the tool's environment runs it: python PROGRAM work measure.gpt_oss_evals_worker and the tool's
options. FLEET_VALUES is a JSON mapping with datasets, output, urls, max_tokens, retries and examples.
"""

from __future__ import annotations

import builtins
import itertools
import json
import os
import sys
import threading


class GaveUp(Exception):
    """A request failed too often."""


def main():
    """The tool's main() in these surroundings."""
    import pandas  # only in the tool's environment
    from gpt_oss.evals import __main__ as tool
    from gpt_oss.evals.types import SamplerResponse

    values = json.loads(os.environ["FLEET_VALUES"])
    pandas.read_csv = _from_folder(pandas.read_csv, values["datasets"])
    pandas.read_json = _from_folder(pandas.read_json, values["datasets"])
    tool.open = _opener(values["output"])
    if values["examples"]:
        for name in ("GPQAEval", "AIME25Eval"):
            setattr(tool, name, _few(getattr(tool, name), values["examples"]))
    tool.ChatCompletionsSampler = _sampler(tool.ChatCompletionsSampler, SamplerResponse, values)
    tool.main()


def _from_folder(reader, folder):
    """A pandas reader that reads the file with the URL's name in the folder."""
    return lambda url, *args, **kwargs: reader(os.path.join(folder, url.rpartition("/")[2]), *args, **kwargs)


def _opener(folder):
    """open() with the folder instead of /tmp."""

    def opened(path, *args, **kwargs):
        if isinstance(path, str) and path.startswith("/tmp/"):
            path = os.path.join(folder, os.path.basename(path))
        return builtins.open(path, *args, **kwargs)

    return opened


def _few(kind, examples):
    """An evaluation with this number of questions, each asked once."""

    def made(**options):
        return kind(**{**options, "n_repeats": 1, "num_examples": examples})

    return made


def _sampler(kind, response, values):
    """The tool's sampler, over all servers in turn. A request that failed too often is answered "No response (…)."."""
    urls, max_tokens, retries = values["urls"], values["max_tokens"], values["retries"]

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
            local.trial, local.messages, local.asked = 0, messages, len(messages)
            try:
                answer = super().__call__(messages)
                # otherwise the result has each reasoning twice, and that of a full run is too large to be read
                del messages[local.asked :]
                return answer
            except GaveUp as error:
                return response(
                    response_text="No response (%s)." % error,
                    response_metadata={"usage": None},
                    actual_queried_message_list=messages,
                )

    module, local = sys.modules[kind.__module__], threading.local()

    class Clock:
        """`time` in the sampler's module: each sleep follows a failure."""

        def __getattr__(self, name):
            return getattr(clock, name)

        def sleep(self, seconds):
            error = sys.exc_info()[1]
            del local.messages[local.asked :]  # the reasoning of the answer that the tool then asks for again
            local.trial += 1
            if local.trial >= retries:
                text = " ".join(str(error).split())[:200].rstrip(".")
                raise GaveUp("%s after %d trials: %s" % (type(error).__name__, local.trial, text))
            clock.sleep(min(seconds, 30))

    clock, module.time = module.time, Clock()
    return Sampler
