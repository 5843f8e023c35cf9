# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a simulated Trainium3 server has after each boot: devices, the AMI's account, packages and checkpoints.

With SIMULATED_NEURON_BARE set it is no machine image: what the image brings is taken away, and there are no devices
before the driver's package calls `setup.py devices`. Checkpoints are there, as on a mounted file system.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import shutil
import stat
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import simulated_neuron  # noqa: E402 - found by the path above

MODELS = "/mnt/inference/models"
# What the beta image of the tutorial (SDK 2.27) has.
PACKAGES = {
    "aws-neuronx-dkms": "2.25.4.0",
    "aws-neuronx-runtime-lib": "2.29.40.0-f954cd7a5",
    "aws-neuronx-collectives": "2.29.41.0-681fef5f5",
    "aws-neuronx-tools": "2.27.33.0",
}
# What only the machine image has.
IMAGE = ("/home/ubuntu", "/opt/aws", "/opt/aws_neuronx_venv_pytorch_inference_vllm_0_24_0_1_1_0")
PCI = "/sys/bus/pci/devices"
DRIVER = "/usr/src/simulated-neuron/dkms.conf"  # of the stand-in for its package
HIDDEN, VOCABULARY, LAYERS, DIMENSIONS = 64, 512, 2, {"BF16": 2, "U8": 1}
COMMON = {
    "hidden_size": HIDDEN,
    "intermediate_size": HIDDEN,
    "vocab_size": VOCABULARY,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
TARGET = {
    **COMMON,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": LAYERS,
    "head_dim": 64,
    "num_local_experts": 4,
    "num_experts_per_tok": 4,
    "quantization_config": {"quant_method": "mxfp4"},
}
DRAFT = {
    **COMMON,
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "draft_vocab_size": VOCABULARY,
    "num_hidden_layers": 1,
    "head_dim": 8,
}


def target_tensors():
    """{name: (dtype, shape)} of a gpt-oss checkpoint in MXFP4, as small as it gets."""
    tensors = {
        "model.embed_tokens.weight": ("BF16", [VOCABULARY, HIDDEN]),
        "model.norm.weight": ("BF16", [HIDDEN]),
        "lm_head.weight": ("BF16", [VOCABULARY, HIDDEN]),
    }
    for number in range(LAYERS):
        layer = "model.layers.%d." % number
        tensors[layer + "input_layernorm.weight"] = ("BF16", [HIDDEN])
        tensors[layer + "mlp.experts.gate_up_proj_blocks"] = ("U8", [4, 2 * HIDDEN, 2, 16])
        tensors[layer + "mlp.experts.gate_up_proj_scales"] = ("U8", [4, 2 * HIDDEN, 2])
    return tensors


def draft_tensors():
    """{name: (dtype, shape)} of an EAGLE3 head of the Llama dense form."""
    row, wide = ("BF16", [HIDDEN]), ("BF16", [HIDDEN, 2 * HIDDEN])
    square, words = ("BF16", [HIDDEN, HIDDEN]), ("BF16", [VOCABULARY, HIDDEN])
    layer = {
        **dict.fromkeys(("hidden_norm", "input_layernorm", "post_attention_layernorm"), row),
        **dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), wide),
        **dict.fromkeys(("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"), square),
    }
    tensors = {"embed_tokens": words, "fc": ("BF16", [HIDDEN, 3 * HIDDEN]), "lm_head": words, "norm": row}
    tensors.update(("midlayer." + name, kind) for name, kind in layer.items())
    return {name + ".weight": kind for name, kind in tensors.items()}


def safetensors(tensors):
    """The bytes of a safetensors file of zeros."""
    header, end = {}, 0
    for name, (kind, shape) in tensors.items():
        size = DIMENSIONS[kind] * math.prod(shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(end)


def write_checkpoint(folder, config, tensors, indexed):
    os.makedirs(folder)
    shard = "model-00001-of-00001.safetensors" if indexed else "model.safetensors"
    with open(os.path.join(folder, shard), "wb") as stream:
        stream.write(safetensors(tensors))
    texts = {"config.json": config}
    if indexed:
        texts["tokenizer.json"] = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}
        texts["model.safetensors.index.json"] = {"metadata": {}, "weight_map": dict.fromkeys(tensors, shard)}
    for name, value in texts.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
            json.dump(value, stream)


def own(path, user):
    """Give all below `path` to the user."""
    for folder, _folders, names in os.walk(path):
        for name in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(name, user.pw_uid, user.pw_gid, follow_symlinks=False)


def installed(name, version):
    return (
        "Package: %s\nStatus: install ok installed\nPriority: optional\nSection: misc\nInstalled-Size: 0\n"
        "Maintainer: nobody <nobody@localhost>\nArchitecture: all\nVersion: %s\nDescription: simulated\n\n"
        % (name, version)
    )


def make_devices(chips):
    for number in range(chips):
        device = "/dev/neuron%d" % number
        if not os.path.exists(device):
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # opens and reads as nothing
            os.chmod(device, 0o666)


def become_image():
    """The account of the image, which owns its environment and checkpoints, and its packages."""
    try:
        return pwd.getpwnam("ubuntu")
    except KeyError:
        subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/bash", "ubuntu"], check=True)
    user = pwd.getpwnam("ubuntu")
    own("/home/ubuntu", user)
    with open("/var/lib/dpkg/status", "a", encoding="utf-8") as stream:
        stream.write("".join(installed(*item) for item in PACKAGES.items()))
    return user


def become_bare(chips):
    """Root, who owns the checkpoints here. Without a driver the chips are to be seen on the PCI bus alone."""
    subprocess.run(["mount", "-t", "tmpfs", "simulated-neuron", PCI], check=True)
    for number in range(chips):
        folder = "%s/0000:%02x:00.0" % (PCI, 0x10 + number)
        os.makedirs(folder)
        for name, text in (("vendor", "0x1d0f"), ("device", "0x7564")):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as stream:
                stream.write(text + "\n")
    if not os.path.exists(DRIVER):
        for path in IMAGE:
            shutil.rmtree(path, ignore_errors=True)
    return pwd.getpwnam("root")


def main():
    bare = os.environ.get("SIMULATED_NEURON_BARE") == "1"
    chips = int(os.environ.get("SIMULATED_NEURON_CHIPS") or 16)
    os.umask(0o022)
    os.makedirs(simulated_neuron.FOLDER, exist_ok=True)
    with open(simulated_neuron.HARDWARE, "w", encoding="utf-8") as stream:
        json.dump({"chips": chips, "cores_per_chip": 8, "lnc": 2, "memory": simulated_neuron.MEMORY}, stream)
    os.makedirs(os.path.dirname(simulated_neuron.SETTINGS), exist_ok=True)
    for path in (simulated_neuron.CORES, simulated_neuron.COMPILES):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a", encoding="utf-8"):
            os.chmod(path, 0o666)
    user = become_bare(chips) if bare else become_image()
    if not bare or os.path.exists(DRIVER):
        make_devices(chips)
    for name, config, tensors in (("gpt-oss-120b", TARGET, target_tensors()),
                                  ("gpt-oss-120b-eagle3", DRAFT, draft_tensors())):  # fmt: skip
        folder = os.path.join(MODELS, name)
        if not os.path.isdir(folder):
            write_checkpoint(folder, config, tensors, indexed=config is TARGET)
            own(folder, user)


if __name__ == "__main__":
    if sys.argv[1:] == ["devices"]:
        make_devices(simulated_neuron.hardware()["chips"])
    else:
        main()
