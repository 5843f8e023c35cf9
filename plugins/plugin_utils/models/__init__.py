# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Families of models: a file for each, with one object MODEL_FAMILY."""

from __future__ import annotations

import re

from ansible_collections.inference.fleet.plugins.plugin_utils.registry import discover

FAMILIES = discover(__name__, __path__, "MODEL_FAMILY")
DEFAULT = "gpt_oss"
# How names of checkpoints of other families begin a word; names that say nothing are taken as they are.
OTHERS = re.compile(
    r"(?<![a-z])(qwen|qwq|qvq|(?:tiny|code|open)?llama|mi[sx]tral|ministral|magistral|devstral|codestral|pixtral|deepseek|gemma|"
    r"codegemma|phi-?\d|glm|chatglm|kimi|moonlight|minimax|nemotron|granite|falcon|yi-|command-?[ar]|aya-|olmo|molmo|"
    r"internlm|internvl|baichuan|ernie|hunyuan|exaone|solar|starcoder|stablelm|smollm|smolvlm|vicuna|zephyr|wizard|dolphin|"
    r"mpt-|bloom|opt-\d|pythia|gpt-?2|gpt-?neo|gpt-?j|dbrx|jamba|arctic|grok|cogito|tulu|seed-oss|step-?\d|ling-|ring-|"
    r"longcat|mimo|bert|roberta|t5-|whisper|clip-|llava|paligemma|florence|bge-|gte-|e5-|jina|nomic|stable-diffusion|flux)"
)


def family_of(recipe):
    """The family of a recipe's model."""
    return FAMILIES[recipe["model"].get("family") or DEFAULT]


def other_family(repo):
    """What a repository's name says where it is of a family that is not served, None elsewhere."""
    found = OTHERS.search(repo.lower())
    return found.group(1) if found and not any(family.has(repo) for family in FAMILIES.values()) else None


def model_of(recipe):
    """The dimensions of a recipe's checkpoint, None where they are not known."""
    return family_of(recipe).models.get(recipe["model"]["repo"])
