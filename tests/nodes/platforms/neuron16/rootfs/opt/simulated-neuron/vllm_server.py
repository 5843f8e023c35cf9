# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A simulated vLLM on Neuron: strict about what it is given, slow to compile, and answering as gpt-oss does.

Two flavours: vLLM 0.11.1 with NxD Inference ("nxdi": NEURON_RT_VISIBLE_CORES, override_neuron_config, artifacts in
NEURON_COMPILED_ARTIFACTS) and vLLM 0.24.0 with the vLLM Neuron plugin ("plugin": NEURON_VISIBLE_DEVICES,
neuron_config, a cache below VLLM_CACHE_ROOT). GET /simulated tells which configuration really runs.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines"))
import scripted_engine  # noqa: E402 - found by the path above
import simulated_neuron  # noqa: E402 - found by the path above

VERSIONS = {"nxdi": "0.11.1", "plugin": "0.24.0"}
VALUES = (
    "additional-config", "api-key", "block-size", "chat-template", "data-parallel-size", "download-dir", "dtype",
    "generation-config", "gpu-memory-utilization", "host", "hf-overrides", "kv-cache-dtype", "kv-transfer-config",
    "load-format", "max-logprobs", "max-model-len", "max-num-batched-tokens", "max-num-seqs", "middleware", "model",
    "num-gpu-blocks-override", "optimization-level", "pipeline-parallel-size", "port", "quantization",
    "reasoning-parser", "revision", "root-path", "seed", "served-model-name", "speculative-config",
    "tensor-parallel-size", "tokenizer", "tool-call-parser", "uvicorn-log-level",
)  # fmt: skip
SWITCHES = (
    "async-scheduling", "disable-hybrid-kv-cache-manager", "disable-log-requests", "disable-log-stats",
    "enable-auto-tool-choice", "enable-chunked-prefill", "enable-expert-parallel", "enable-log-requests",
    "enable-prefix-caching", "enforce-eager", "trust-remote-code",
)  # fmt: skip
NUMBERS = (
    "block-size", "data-parallel-size", "max-model-len", "max-num-batched-tokens", "max-num-seqs",
    "num-gpu-blocks-override", "port", "tensor-parallel-size",
)  # fmt: skip
# What the configurations of both engines read, from the collection's list of it; an unknown key is refused, louder than
# the engines are.
HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "keys", "keys.json"), encoding="utf-8") as keys:
    KEYS = json.load(keys)["keys"]
TRAILER = b"--whole--"


def say(text):
    """A line as the engine logs it."""
    print("INFO %s [simulated] %s" % (time.strftime("%m-%d %H:%M:%S"), text), flush=True)


def die(text, status=1):
    print("ERROR %s [simulated] %s" % (time.strftime("%m-%d %H:%M:%S"), text), flush=True)
    raise SystemExit(status)


def mapping(text):
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def parse(argv, version):
    """The options of `vllm serve`; an unknown flag ends the process as vLLM's parser does."""
    top = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    top.add_argument("-v", "--version", action="version", version=version)
    parser = top.add_subparsers(dest="command", required=True).add_parser("serve", allow_abbrev=False)
    parser.add_argument("model_tag", nargs="?")
    kinds = dict.fromkeys(("additional-config", "hf-overrides", "kv-transfer-config", "speculative-config"), mapping)
    kinds.update(dict.fromkeys(NUMBERS, int))
    for name in VALUES:
        parser.add_argument("--" + name, type=kinds.get(name, str), nargs="+" if name == "served-model-name" else None)
    for name in SWITCHES:
        parser.add_argument("--" + name, action=argparse.BooleanOptionalAction)
    return top.parse_args(argv)


def model_config(path):
    try:
        with open(os.path.join(path, "config.json"), encoding="utf-8") as stream:
            return json.load(stream)
    except OSError as error:
        die("OSError: Can't load the configuration of '%s': %s" % (path, error))


def visible_cores(flavour):
    """The logical cores of this process, from the variable that its flavour reads."""
    name = {"nxdi": "NEURON_RT_VISIBLE_CORES", "plugin": "NEURON_VISIBLE_DEVICES"}[flavour]
    count = simulated_neuron.logical_cores(simulated_neuron.hardware())
    text = os.environ.get(name)
    try:
        cores = list(range(count)) if text is None else simulated_neuron.parse_cores(text)
    except ValueError:
        die("NRT:nrt_init_cores  Invalid %s: %r" % (name, text))
    if not cores or max(cores) >= count:
        die("NRT:nrt_init_cores  Invalid %s: %s, this server has cores 0-%d" % (name, text, count - 1))
    return cores


def neuron_config(options, flavour):
    """The configuration that decides what is compiled, beside model and sizes. Unknown keys end the process."""
    given = options.additional_config or {}
    key = {"nxdi": "override_neuron_config", "plugin": "neuron_config"}[flavour]
    found = given.get(key, {})  # under any other name it is not seen at all
    unknown = sorted(set(found) - set(KEYS[key]))
    if unknown:
        die("TypeError: NeuronConfig.__init__() got an unexpected keyword argument '%s'" % unknown[0])
    return found


def asked_config(options, flavour, cores, model):
    target = model_config(model)
    draft = None
    if options.speculative_config:
        draft = model_config(options.speculative_config.get("model") or "")
        if draft.get("hidden_size") != target.get("hidden_size"):
            die("RuntimeError: size mismatch for fc.weight: the draft's hidden size is not the target's")
    return {
        "flavour": flavour,
        "model": {key: target.get(key) for key in ("hidden_size", "vocab_size", "num_hidden_layers")},
        "draft": draft and {key: draft.get(key) for key in ("hidden_size", "vocab_size")},
        "speculative": (options.speculative_config or {}).get("num_speculative_tokens"),
        "tensor_parallel": options.tensor_parallel_size or 1,
        "data_parallel": options.data_parallel_size or 1,
        "cores": len(cores),
        "max_num_seqs": options.max_num_seqs,
        "max_model_len": options.max_model_len,
        "prefix_caching": options.enable_prefix_caching,
        "neuron": neuron_config(options, flavour),
    }


def digest(config):
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


# ---- compiled artifacts


def load(folder):
    """The configuration of the artifact in `folder`; None where there is none. A cut one ends the process."""
    try:
        with open(os.path.join(folder, "neuron_config.json"), encoding="utf-8") as stream:
            config = json.load(stream)["simulated"]
        with open(os.path.join(folder, "model.pt"), "rb") as stream:
            whole = stream.read().endswith(TRAILER)
    except (FileNotFoundError, ValueError, KeyError):
        return None
    if not whole:
        die("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory")
    for rank in range(config["tensor_parallel"]):
        if not os.path.exists(os.path.join(folder, "weights", "tp%d_sharded_checkpoint.safetensors" % rank)):
            return None
    return config


def compile_model(config, folder, work, settings):
    """Compile into `folder`; the last file is written in two halves, so that a kill leaves what looks like one."""
    os.makedirs(work, exist_ok=True)
    lock = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        die("RuntimeError: neuronx-cc: the work directory %s is in use by another compilation" % work)
    with open(simulated_neuron.COMPILES, "a", encoding="utf-8") as stream:
        stream.write("%s: %s\n" % (os.environ.get("INFERENCE_FLEET_SERVER"), folder))
    say("Compiling the model for Neuron, this takes a while")
    os.makedirs(os.path.join(folder, "weights"), exist_ok=True)
    with open(os.path.join(folder, "neuron_config.json"), "w", encoding="utf-8") as stream:
        sizes = {"tp_degree": config["tensor_parallel"], "max_batch_size": config["max_num_seqs"],
                 "seq_len": config["max_model_len"]}  # fmt: skip
        json.dump({"neuron_config": {**sizes, **config["neuron"]}, "simulated": config}, stream)
    for rank in range(config["tensor_parallel"]):
        with open(os.path.join(folder, "weights", "tp%d_sharded_checkpoint.safetensors" % rank), "wb") as stream:
            stream.write(b"%d" % rank * 1024)
    with open(os.path.join(folder, "model.pt"), "wb") as stream:
        stream.write(digest(config).encode() * 64)
        stream.flush()
        time.sleep(3)
        while settings["compile_until"] and not os.path.exists(settings["compile_until"]):
            time.sleep(0.1)
        stream.write(TRAILER)
    with open(os.path.join(work, "compiled"), "w", encoding="utf-8") as stream:
        stream.write(digest(config))
    os.close(lock)


def bring_model(config, flavour, model, settings):
    """The configuration that runs."""
    work = os.environ.get("BASE_COMPILE_WORK_DIR", "/tmp/nxd_model/")
    if flavour == "plugin":
        named = (os.environ.get(name) for name in ("NEURON_LIBTORCH_CACHE_ROOT", "VLLM_CACHE_ROOT"))
        root = next(filter(None, named), os.path.join(os.environ["HOME"], ".cache", "neuron_libtorch"))
        folder = os.path.join(root, "neuron", "compile_cache", digest(config))
        work = folder + ".work"
    elif "NEURON_COMPILED_ARTIFACTS" in os.environ:
        folder = os.environ["NEURON_COMPILED_ARTIFACTS"]
    else:
        folder = os.path.join(model, "neuron-compiled-artifacts", digest(config))
        shutil.rmtree(folder, ignore_errors=True)  # as the plugin does
    found = load(folder)
    if found is not None:
        time.sleep(0.3)
        if found != config:
            say("Successfully loaded pre-compiled model artifacts from %s" % folder)  # and not a word of the difference
        return found
    say("Unable to find pre-compiled artifacts in %s, recompiling" % folder)
    compile_model(config, folder, work, settings)
    return config


# ---- processes


def worker(cores, lnc, ready, stubborn):
    """The process that holds the cores, as the engine's core does: in a session of its own, TERM ends it or not."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if stubborn else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        simulated_neuron.open_devices(cores)
    except OSError as error:
        print("%s %d:%d ERROR  NRT:nrt_init  %s: %s" % (time.strftime("%Y-%b-%d %H:%M:%S"), os.getpid(), os.getpid(),
                                                        error.filename, error.strerror), flush=True)  # fmt: skip
        os._exit(1)
    taken = simulated_neuron.hold(cores)
    if taken:
        print(
            "%s %d:%d ERROR  NRT:nrt_allocate_neuron_cores  Logical Neuron Core(s) not available - Requested:lnc%s "
            "Available:%d Logical Core size:%d"
            % (time.strftime("%Y-%b-%d %H:%M:%S"), os.getpid(), os.getpid(), ",lnc".join(map(str, cores)),
               len(cores) - len(taken), lnc), flush=True
        )  # fmt: skip
        os._exit(1)
    os.write(ready, b"1")
    while True:
        time.sleep(60)


def main(flavour, argv):
    options = parse(argv, VERSIONS[flavour])
    model = options.model or options.model_tag
    if not model:
        die("ValueError: no model was given", 2)
    if options.middleware:
        module, _dot, name = options.middleware.rpartition(".")
        getattr(importlib.import_module(module), name)
    shape, settings = simulated_neuron.hardware(), simulated_neuron.settings()
    cores = visible_cores(flavour)
    config = asked_config(options, flavour, cores, model)
    if config["tensor_parallel"] * config["data_parallel"] != len(cores):
        die("AssertionError: tensor parallel size %d and data parallel size %d need as many NeuronCores as their "
            "product, %d are visible" % (config["tensor_parallel"], config["data_parallel"], len(cores)))  # fmt: skip
    lnc = os.environ.get("NEURON_LOGICAL_NC_CONFIG") or os.environ.get("NEURON_RT_VIRTUAL_CORE_SIZE") or shape["lnc"]
    for wanted in (lnc, config["neuron"].get("logical_nc_config", lnc)):
        if int(wanted) != shape["lnc"]:
            die("NRT:nrt_init  logical core size %s is not that of this server (%d)" % (wanted, shape["lnc"]))
    if flavour == "nxdi" and os.environ.get("VLLM_NEURON_FRAMEWORK") != "neuronx-distributed-inference":
        die("AssertionError: VLLM_NEURON_FRAMEWORK must be neuronx-distributed-inference")

    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ready)
        try:
            worker(cores, shape["lnc"], told, settings["stubborn"])
        finally:
            os._exit(1)
    os.close(told)
    if os.read(ready, 1) != b"1":
        os.waitpid(pid, 0)
        die("RuntimeError: Engine core initialization failed. See root cause above.")

    def end(_sign, _frame):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    running = bring_model(config, flavour, model, settings)
    serve(options, flavour, model, running, config, pid)


def serve(options, flavour, model, running, asked, child):
    """Listen, now that there is something to answer with; end when the worker does."""
    encodings = os.environ.get("TIKTOKEN_ENCODINGS_BASE")
    faults = ()
    if encodings and not os.path.exists(os.path.join(encodings, "o200k_base.tiktoken")):
        faults = ("vocab-missing",)
    names = options.served_model_name or [model]
    scripted_engine.PORTS = [options.port or 8000]
    facts = {"running": digest(running), "asked": digest(asked), "pid": os.getpid(), "worker": child}
    engine = scripted_engine.ScriptedEngine(
        faults, model=names[0], listed=list(names), context=options.max_model_len,
        api_key=os.environ.get("VLLM_API_KEY"),
        reasoning_field={"nxdi": "reasoning_content"}.get(flavour, "reasoning"),
        pages={"/simulated": json.dumps(facts), "/version": json.dumps({"version": VERSIONS[flavour]})},
    )  # fmt: skip
    with engine:
        say("Application startup complete.")
        say("Uvicorn running on http://%s:%d" % (options.host, engine.port))
        os.waitpid(child, 0)
    die("EngineDeadError: EngineCore encountered an issue.")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
