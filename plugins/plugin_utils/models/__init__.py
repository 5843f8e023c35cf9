# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Families of models: one file each, with an object MODEL_FAMILY."""

from __future__ import annotations

import re

from ...module_utils.fleet_node.discover import discover
from .base import dimensions

FAMILIES = discover(__name__, __path__, "MODEL_FAMILY")
DEFAULT = "gpt_oss"
# Beginnings of words in names of other families' checkpoints. Other names, such as those of fine-tunes, are accepted.
OTHERS = re.compile(
    r"(?<![a-z])(qwen|qwq|qvq|(?:tiny|code|open)?llama|mi[sx]tral|(?:mini|magi|dev|code)stral|pixtral|deepseek|"
    r"(?:pali|code)?gemma|phi-?\d|(?:chat)?glm|kimi|moonlight|minimax|nemotron|granite|falcon|yi-|command-?[ar]|aya-|"
    r"olmo|molmo|internlm|internvl|baichuan|ernie|hunyuan|exaone|solar|starcoder|stablelm|smollm|smolvlm|vicuna|mpt-|"
    r"bloom|opt-\d|pythia|gpt-?2|gpt-?neo|gpt-?j|dbrx|jamba|grok|seed-oss|longcat|mimo|bert|roberta|t5-|whisper|llava)"
)


def family_of(recipe):
    """Return the family of a recipe's model."""
    return FAMILIES[recipe["model"].get("family") or DEFAULT]


def other_family(repo):
    """Return the word by which a repository's name is of a family that is not served, or None."""
    found = OTHERS.search(repo.lower())
    return found.group(1) if found and not any(family.has(repo) for family in FAMILIES.values()) else None


def model_of(recipe):
    """Return the dimensions of a recipe's checkpoint, None if they are not known."""
    family, model = family_of(recipe), recipe["model"]
    config = model.get("config")
    if family.models or not isinstance(config, dict):
        return family.models.get(model["repo"])
    return dimensions(config, model["format"], family.headless)


def problem_of(recipe, config):
    """Return what contradicts a recipe's model in its config.json, as a clause, or None."""
    family, kind = family_of(recipe), config.get("model_type")
    owners = [one.name for one in FAMILIES.values() if kind in one.model_types and one is not family]
    if owners:
        return "model_type is %s, of the family %s, and model.family is %s" % (kind, owners[0], family.name)
    return family.problem(recipe["model"], config)
