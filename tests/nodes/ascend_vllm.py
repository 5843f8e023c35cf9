# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for `vllm` of the image vllm-ascend: it refuses what the real one refuses before it loads anything, then
the scripted engine answers.

The image says which generation it is built for (SIMULATED_SOC). Its flags are those of vLLM 0.20.2 as recorded.
`vllm bench` sends requests, or starts this engine without a port; its numbers mean nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys

import bench_serving

HERE = os.path.dirname(os.path.abspath(__file__))
DRIVER = "/usr/local/Ascend/driver/"
O200K = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
WANTED = {
    "/dev/davinci_manager": "drvErr: open /dev/davinci_manager failed",
    "/dev/devmm_svm": "devmm: open /dev/devmm_svm failed",
    "/dev/hisi_hdc": "hdc: open /dev/hisi_hdc failed",
    DRIVER + "lib64/libascend_hal.so": "ImportError: libascend_hal.so: cannot open shared object file",
    DRIVER + "version.info": "RuntimeError: cannot read the driver's version.info",
    DRIVER + "tools/hccn_tool": "RuntimeError: hccn_tool is not there",
    "/usr/local/dcmi": "dcmi module initialize failed. ret is -8005",
    "/usr/local/bin/npu-smi": "RuntimeError: npu-smi is not there",
    "/etc/ascend_install.info": "RuntimeError: cannot read /etc/ascend_install.info",
}


# Flags of `vllm bench`, apart from the engine's.
OFFLINE = {
    "latency": {"input-len", "output-len", "batch-size", "num-iters-warmup", "num-iters", "output-json"},
    "throughput": {"dataset-name", "random-input-len", "random-output-len", "num-prompts", "output-json"},
}


def options_of(words, more=()):
    """{flag: its value, True for a switch}. SystemExit where vLLM's parser ends."""
    with open(HERE + "/vllm-0.20.2-flags.json", encoding="utf-8") as stream:
        flags = json.load(stream)
    flags["value"] = [*flags["value"], *more]
    found, words = {}, list(words)
    while words:
        word = words.pop(0)
        kind = next((kind for kind, names in flags.items() if word[2:] in names), None)
        if kind is None:
            raise SystemExit("vllm serve: error: unrecognized arguments: " + word)
        found[word[2:]] = True if kind == "switch" else words.pop(0)
    return found


def check(options, model):
    """SystemExit where the real stack would not come up."""
    for path, words in WANTED.items():
        if not os.path.exists(path):
            raise SystemExit(words)
    chips = [name for name in os.listdir("/dev") if re.match(r"^davinci[0-9]+$", name)]
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "").split(",")
    if sorted(visible) != sorted(str(number) for number in range(len(chips))):
        raise SystemExit("aclrtSetDevice: invalid device id: %s of %d" % (",".join(visible), len(chips)))
    if int(options.get("tensor-parallel-size", 1)) * int(options.get("data-parallel-size", 1)) != len(chips):
        raise SystemExit("tensor-parallel-size times data-parallel-size is not the number of NPUs, %d" % len(chips))
    table = subprocess.run(["npu-smi", "info"], stdout=subprocess.PIPE, text=True, check=True).stdout
    soc = "a3" if "Phy-ID" in table else "a2"
    if soc != os.environ["SIMULATED_SOC"]:
        raise SystemExit("RuntimeError: this build is for %s and runs on %s" % (os.environ["SIMULATED_SOC"], soc))
    try:
        with open(os.environ["TIKTOKEN_ENCODINGS_BASE"] + "/o200k_base.tiktoken", "rb") as stream:
            found = hashlib.sha256(stream.read()).hexdigest()
    except (KeyError, OSError) as error:
        raise SystemExit("HarmonyError: invalid tiktoken vocab file: %s" % error) from error
    if found != O200K:
        raise SystemExit("HarmonyError: invalid tiktoken vocab file: hash mismatch: computed=%s" % found)
    config = model + "/config.json"
    if os.path.exists(config):
        with open(config, encoding="utf-8") as stream:
            method = json.load(stream).get("quantization_config", {}).get("quant_method")
        if method == "mxfp4":
            raise SystemExit("ValueError: mxfp4 quantization is currently not supported in npu.")


def bench(action, words):
    """What `vllm bench latency` or `throughput` does: an engine in place of a server, and a file of results."""
    options = options_of(words, OFFLINE[action])
    check(options, options["model"])
    if action == "latency":
        result = {"latencies": [0.25] * int(options["num-iters"]), "avg_latency": 0.25}
    else:
        count = int(options["num-prompts"])
        result = {"elapsed_time": 1.0, "num_requests": count, "requests_per_second": count, "tokens_per_second": 1.0}
    with open(options["output-json"], "w", encoding="utf-8") as stream:
        json.dump(result, stream)


if __name__ == "__main__":
    if sys.argv[1:3] == ["bench", "serve"]:
        raise SystemExit(bench_serving.vllm(sys.argv[3:]))
    if sys.argv[1] == "bench":
        raise SystemExit(bench(*sys.argv[2:3], sys.argv[3:]))
    if sys.argv[1:2] != ["serve"]:
        raise SystemExit("vllm: error: invalid choice")
    given = options_of(sys.argv[3:])
    check(given, sys.argv[2])
    engine = [sys.executable, HERE + "/engine.py", "--port", given["port"], "--model", given["served-model-name"]]
    os.execv(sys.executable, engine)
