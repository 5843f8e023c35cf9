# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Renders a part of docs/using/trainium-recipes.md: what each recipe starts, beside the vendor's own lines.

    .venv/bin/python tools/run.py python tools/trainium_doc.py      # writes docs/using/trainium-recipes.md anew

Every flag and variable that a recipe renders must have its line here, and every line here must be rendered. The block
`container` has the options of docker with the example of docs/using/trainium.md instead.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from ansible_collections.inference.fleet.plugins.plugin_utils.planning import plan
from ansible_collections.inference.fleet.plugins.plugin_utils.planning.hardware import parse_hardware
from ansible_collections.inference.fleet.plugins.plugin_utils.recipe import load as recipes

PAGE = Path(__file__).resolve().parent.parent / "docs" / "using" / "trainium-recipes.md"
NODE_PAGE = PAGE.with_name("trainium.md")
BLOCK = re.compile(r"(<!-- rendered: ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SAME = "the same"
WHERE = "says which server it is"
PATH_WHY = "activation and the image's profile, without a shell"
ENCODINGS_WHY = "offline: the vocabulary's encodings come from the collection's own folder"
ARTIFACT_WHY = "always set and keyed: unset it is deleted and compiled anew, unkeyed an unfit one is loaded"
TOOLS_WHY = "without them a tool call is dropped without a word"
ID_WHY = "the id that clients send is the plan's, not a path by chance"
HOST_WHY = "loopback unless `fleet_bind_address` says otherwise; the vendor's listens on all addresses"

# {recipe: [(the vendor's line or "", flag or variable of ours or "", why)]}; "" of ours: nothing is rendered for it.
LINES = {
    "trn3-eagle3": [
        ("`source ./neuronx_gpt_oss_120b_in_vllm_venv/bin/activate`", "PATH", PATH_WHY),
        ("", "VIRTUAL_ENV", PATH_WHY),
        ("`bash start_vllm_server.sh`, which is not published; closest public: `vllm serve`", "command",
         "the script's arguments are written out, so that they can be read and overridden"),
        ("`--model \"$MODEL_PATH\"`, weights in `/mnt/inference/models/`", "--model", SAME),
        ("clients send `/mnt/inference/models/gpt-oss-120b`", "--served-model-name", SAME),
        ("Uvicorn on `0.0.0.0:8000`", "--host", HOST_WHY),
        ("`--port 8000`, a unique one for each copy", "--port", WHERE),
        ("`tp_degree=8`", "--tensor-parallel-size", "the number of cores of a server"),
        ("`--max-num-seqs \"${bs}\"`", "--max-num-seqs",
         "not published for this model; 16 as in NxD Inference's test"),
        ("`--max-model-len 8192` (public script)", "--max-model-len",
         "the tutorial's benchmark sends 10000 and wants 3000 tokens"),
        ("`--no-enable-prefix-caching`", "--no-enable-prefix-caching", SAME),
        ("`--no-enable-chunked-prefill` (sibling tutorials)", "--no-enable-chunked-prefill",
         "the plugin turns it off by itself; written out, since the next line holds without it only"),
        ("`--num-gpu-blocks-override`, equal to `--max-num-seqs` without chunked prefill and prefix caching (vLLM user "
         "guide)", "--num-gpu-blocks-override",
         "the guide demands it against out-of-bounds errors; the public script leaves it out"),
        ("", "--tool-call-parser", TOOLS_WHY),
        ("", "--enable-auto-tool-choice", TOOLS_WHY),
        ("EAGLE3, speculation length 5", "--speculative-config",
         "the draft's folder; the private image may name it otherwise (`model.draft.path`)"),
        ("`--additional-config '{\"override_neuron_config\": …}'`", "--additional-config",
         "`LNC=2`, MXFP4, EAGLE3 and the kernels for attention, MoE and sampling under the names that NxD Inference "
         "reads; the image's values are not published"),
        ("`VLLM_NEURON_FRAMEWORK=\"neuronx-distributed-inference\"`", "VLLM_NEURON_FRAMEWORK", SAME),
        ("`NEURON_RT_VISIBLE_CORES=0-7`, updated for each copy", "NEURON_RT_VISIBLE_CORES", WHERE),
        ("`NEURON_RT_VIRTUAL_CORE_SIZE=2`", "NEURON_RT_VIRTUAL_CORE_SIZE", SAME),
        ("`NEURON_RT_INSPECT_ENABLE=0`", "NEURON_RT_INSPECT_ENABLE", SAME),
        ("`NEURON_COMPILED_ARTIFACTS=$COMPILED_MODEL_PATH`", "NEURON_COMPILED_ARTIFACTS", ARTIFACT_WHY),
        ("a unique `BASE_COMPILE_WORK_DIR` where several compile", "BASE_COMPILE_WORK_DIR",
         "always its own; two compilations in one folder destroy each other"),
        ("`VLLM_RPC_TIMEOUT=100000`", "VLLM_RPC_TIMEOUT", SAME),
        ("", "TIKTOKEN_ENCODINGS_BASE", ENCODINGS_WHY),
        ("`nohup … > ./vllm_server.log 2>&1 &`", "", "the service manager keeps it, its log is its own"),
    ],
    "trn3-start-script": [
        ("`source ./neuronx_gpt_oss_120b_in_vllm_venv/bin/activate`", "PATH", PATH_WHY),
        ("", "VIRTUAL_ENV", PATH_WHY),
        ("`bash start_vllm_server.sh`, in `~`", "command",
         "in the server's own folder `work`: a relative path in the script does not lead to `~` (above)"),
        ("Uvicorn on `0.0.0.0:8000`", "--host", HOST_WHY),
        ("`--port 8000`, a unique one for each copy", "--port", WHERE),
        ("`export NEURON_RT_VISIBLE_CORES=0-7`, updated for each copy", "NEURON_RT_VISIBLE_CORES", WHERE),
        ("a unique `BASE_COMPILE_WORK_DIR` where several compile", "BASE_COMPILE_WORK_DIR",
         "always its own; two compilations in one folder destroy each other"),
        ("", "NEURON_COMPILED_ARTIFACTS", ARTIFACT_WHY),
        ("", "VLLM_NEURON_FRAMEWORK", "the image's script sets it as well; here it tells the plan which engine it is"),
        ("", "TIKTOKEN_ENCODINGS_BASE", ENCODINGS_WHY),
    ],
    "trn3-vllm-neuron": [
        ("the venv that the image activates", "PATH", PATH_WHY),
        ("", "VIRTUAL_ENV", PATH_WHY),
        ("`vllm serve openai/gpt-oss-120b`", "command", "the checkpoint is on the node, pinned and checksummed"),
        ("", "--served-model-name", ID_WHY),
        ("", "--host", HOST_WHY),
        ("port 8000", "--port", WHERE),
        ("`--tensor-parallel-size 8`", "--tensor-parallel-size", "the number of cores of a server"),
        ("`--enable-prefix-caching`", "--enable-prefix-caching", SAME),
        ("`--no-disable-hybrid-kv-cache-manager`", "--no-disable-hybrid-kv-cache-manager", SAME),
        ("`--max-model-len 16384`", "--max-model-len", SAME),
        ("`--max-num-batched-tokens 8192`", "--max-num-batched-tokens", SAME),
        ("`--max-num-seqs 4`", "--max-num-seqs", SAME),
        ("", "--tool-call-parser", TOOLS_WHY),
        ("", "--enable-auto-tool-choice", TOOLS_WHY),
        ("`--hf-overrides '{\"quantization_config\": {}}'`", "--hf-overrides", SAME),
        ("`--additional-config '{\"neuron_config\": {…}}'`", "--additional-config", SAME),
        ("`NEURON_VISIBLE_DEVICES=\"0-3\"` (in its disaggregated part)", "NEURON_VISIBLE_DEVICES",
         WHERE + "; the tutorial starts one server, which takes all cores"),
        ("`VLLM_NEURON_COMPILATION_TIMEOUT=1200`", "VLLM_NEURON_COMPILATION_TIMEOUT", SAME),
        ("`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=1200`", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", SAME),
        ("`VLLM_ENGINE_READY_TIMEOUT_S=5400` (in its disaggregated part)", "VLLM_ENGINE_READY_TIMEOUT_S",
         "vLLM gives up after 10 minutes otherwise"),
        ("", "NEURON_COMPILED_ARTIFACTS", "the plugin does not read it; the node keeps the artifact's record by it"),
        ("`$HOME/.cache/vllm`", "VLLM_CACHE_ROOT",
         "in the artifact: elsewhere each server would compile for itself, and an export be empty"),
        ("", "TIKTOKEN_ENCODINGS_BASE", ENCODINGS_WHY),
    ],
    "container": [
        ("`docker run`", "command", "in the foreground, kept by the service manager"),
        ("", "--init", "ends what the engine leaves behind; `TERM` reaches it"),
        ("", "--rm", "no container is left of a server that has ended"),
        ("", "--pull", "a start uses no network; the step `prepare` has fetched the image"),
        ("", "--log-driver", "what the engine prints is in the service manager's log"),
        ("", "--stop-timeout", "after that it is killed"),
        ("", "--name", WHERE),
        ("", "--label", "what is ours is found by its labels, never by a name"),
        ("`-p 8080:8080`", "--network", "the port is the plan's, on the address of the plan"),
        ("`--cap-add SYS_ADMIN --cap-add IPC_LOCK`", "--cap-add", SAME),
        ("", "--workdir", "each server's own"),
        ("", "--mount", "checkpoint and encodings for reading; the server's folders and the artifact for writing"),
        ("`--device=/dev/neuron0 … --device=/dev/neuron15`", "--device",
         SAME + "; which cores are whose says `NEURON_VISIBLE_DEVICES`"),
        ("`NEURON_SKIP_EFA_AFFINITY=1` (without EFA)", "NEURON_SKIP_EFA_AFFINITY", SAME),
        ("", "SPT_NOENV", "the environment stays readable in `/proc`, by which processes are found"),
        ("", "INFERENCE_FLEET_SERVER", "marks the processes in the container"),
        ("", "INFERENCE_FLEET_ROOT", "marks the processes in the container"),
        ("the image", "image", "its version is part of the artifact's key"),
    ],
}  # fmt: skip


def entries(recipe):
    """The plan of a server of 16 chips: of a recipe, or of the example with containers."""
    layers = []
    if recipe == "container":
        variables = yaml.safe_load(example("container", NODE_PAGE))
        recipe = variables["fleet_recipe"]
        layers = [item for item in variables.items() if item[0].startswith("fleet_override")]
    resolved = recipes.resolve_recipe(recipes.find_recipe(recipe, []), layers)
    hardware = parse_hardware({"accelerator": "trainium3", "count": 16}, "docs")
    return plan.plan_host("trn3-1", resolved, hardware, plan.Site())


def rendered(entry):
    """{"command": argv up to the first flag, flag: its text or None, variable: its text}, in the entry's order."""
    if entry["container"]:
        return rendered_container(entry)
    argv, found = list(entry["command"]), {"command": []}
    while argv and not argv[0].startswith("--"):
        found["command"].append(argv.pop(0))
    for word in argv:
        if re.match(r"--[a-z]", word):
            flag = word
            found[flag] = None
        else:
            found[flag] = word
    found["command"] = " ".join(found["command"])
    return {**found, **entry["environment"]}


def rendered_container(entry):
    """{"command": the client, option of docker: its values, variable that the recipe without a container has not: its
    text, "image": its name}."""
    launch, found = entry["launch"], {"command": " ".join(entry["launch"][:2])}
    known = entries("trn3-vllm-neuron")[0]["environment"]
    end = launch.index(entry["container"]["image"])
    for word in launch[2:end]:
        option, equals, value = word.partition("=")
        if option == "--env":
            variable, _equals, text = value.partition("=")
            if variable not in known:
                found[variable] = text
        elif equals:
            found.setdefault(option, []).append(re.sub("^type=bind,source=(.*),target=.*", r"\1", value))
        else:
            found[option] = None
    for option, texts in found.items():
        if isinstance(texts, list):
            found[option] = ", ".join(texts) if len(texts) < 4 else "%s … %s" % (texts[0], texts[-1])
    return {**found, "image": launch[end]}


def table(recipe):
    """The Markdown of one recipe. ValueError where flags and lines do not match."""
    entry = entries(recipe)[1]
    values = rendered(entry)
    named = [ours for _theirs, ours, _why in LINES[recipe] if ours]
    if sorted(named) != sorted(values):
        raise ValueError(
            "tools/trainium_doc.py: %s: without a line: %s; not rendered: %s"
            % (recipe, sorted(set(values) - set(named)), sorted(set(named) - set(values)))
        )
    rows = [
        "`%s` of 8 on a server of 16 chips:\n" % entry["name"],
        "| the vendor's line | ours | why |",
        "| --- | --- | --- |",
    ]
    for theirs, ours, why in LINES[recipe]:
        text = "–"
        if ours:
            value = values[ours]
            text = "`%s`" % (
                value if ours in ("command", "image") else ours if value is None else
                "%s%s%s" % (ours, " " if ours.startswith("-") else "=", _short(value))
            )  # fmt: skip
        rows.append("| %s | %s | %s |" % (theirs or "–", text.replace("|", "\\|"), why))
    return "\n".join(rows) + "\n"


def _short(value):
    """JSON with its spaces gone, so that a table's cell stays one line; artifacts without the key's digits."""
    value = json.dumps(json.loads(value), separators=(",", ":")) if value.startswith("{") else value
    return re.sub(r"/[0-9a-f]{16}(?=/|$)", "/KEY", value)


def render(text):
    """The page with its rendered blocks made anew."""
    return BLOCK.sub(lambda match: match.group(1) + table(match.group(2)) + match.group(3), text)


def example(name, page=PAGE):
    """The YAML of the example `name` in a page."""
    found = re.search(r"<!-- example: %s -->\n```yaml\n(.*?)```" % re.escape(name), page.read_text(), re.DOTALL)
    if not found:
        raise ValueError("docs/%s has no example %r" % (page.name, name))
    return found.group(1)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
