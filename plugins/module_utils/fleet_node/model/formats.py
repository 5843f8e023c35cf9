# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The format of a checkpoint's weights, by its config.json."""

from __future__ import annotations

import json

UNQUANTIZED = "bf16"
FORMATS = ("mxfp4", UNQUANTIZED, "fp8", "nvfp4", "awq", "gptq")
# The methods whose names differ from the format; compressed-tensors and modelopt contain the format in other keys.
WORDS = {"NVFP4": "nvfp4", "nvfp4-pack-quantized": "nvfp4", "FP8": "fp8", "float-quantized": "fp8"}
INSIDE = ("format", "quant_algo")


def format_of(config):
    """The format of the weights. Without a quantization_config they are not quantized.

    config: the mapping in config.json. Raises ValueError with the reason if the format is not known.
    """
    quantization = config.get("quantization_config")
    if quantization is None:
        return UNQUANTIZED
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
    if method in FORMATS:
        return method
    inside = [quantization.get(key) for key in INSIDE] if isinstance(quantization, dict) else []
    found = next((WORDS[word] for word in inside if isinstance(word, str) and word in WORDS), None)
    if found is None:
        words = "quantization_config.quant_method is %s, allowed: %s or nothing"
        raise ValueError(words % (json.dumps(method), ", ".join(FORMATS)))
    return found
