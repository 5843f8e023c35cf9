# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that is gpt-oss's own on a node: its checkpoints, harmony with its vocabulary and parsers, and its probes.

The probes: questions that it must answer, how the answers are judged, and harmony's residue. What the plan knows of it
is in plugin_utils/models/gpt_oss.py.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata

NAME = "gpt-oss"

# -- checkpoints -------------------------------------------------------------------------------------------------------

MODEL_TYPE = "gpt_oss"
QUANTIZED, UNQUANTIZED = FORMATS = ("mxfp4", "bf16")  # as openai publishes it; as others convert it

# -- the format of prompts and answers, and what engines need to read it -----------------------------------------------

FORMAT = "harmony"
VOCABULARY = "o200k_base"
# As published at https://openaipublic.blob.core.windows.net/encodings/.
VOCABULARIES = {
    VOCABULARY: {"sha256": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d", "size": 3613922},
    "cl100k_base": {"sha256": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7", "size": 1681126},
}
VOCABULARY_SUFFIX = ".tiktoken"
VOCABULARY_FILE = VOCABULARY + VOCABULARY_SUFFIX
VOCABULARY_VARIABLE = "TIKTOKEN_ENCODINGS_BASE"  # names the folder
# {engine: the name of its parser}
REASONING_PARSERS = {"dynamo": "gpt_oss", "vllm": "openai_gptoss"}
TOOL_CALL_PARSERS = {"dynamo": "harmony", "vllm": "openai"}
ADAPTER_OFF = {"trtllm": "DISABLE_HARMONY_ADAPTER"}  # the variable with which an engine does without its parsers

# -- a first request ---------------------------------------------------------------------------------------------------

WARM_UP = "Say hello in one short sentence."

# -- sums: every answer differs from every other -------------------------------------------------------------------


class Sum:
    """A multiplication to ask: question (str), number (int)."""

    def __init__(self, one, two):
        self.question = "What is %d*%d? Answer with the number." % (one, two)
        self.number = one * two


SUMS = tuple(
    Sum(one, two)
    for one, two in (
        (17, 23), (19, 24), (28, 31), (16, 47), (13, 29), (14, 38), (26, 27), (18, 34), (21, 39), (12, 57), (15, 43),
    )
)  # fmt: skip
ARITHMETIC = SUMS[0].question

_BETWEEN_DIGITS = re.compile(r"(?<=\d)[\s,_*'\u2009\u202f]+(?=\d)")


def says_number(text, number):
    """Whether `text` names this number on its own, however it is set: 391., **391**, 3 9 1, 48,213."""
    text = unicodedata.normalize("NFKC", text)
    wanted = re.compile(r"(?<![\d])(?<!\d[.,])%d(?!\d|[.,]\d)" % number)
    return bool(wanted.search(text) or wanted.search(_BETWEEN_DIGITS.sub("", text)))


EFFORT_QUESTIONS = (
    "Which numbers between 1 and 60 are the sum of two squares in two different ways?",
    "A farmer has hens and rabbits, 35 heads and 94 legs together. How many of each? Check your answer.",
)

# -- tools -------------------------------------------------------------------------------------------------------------

# Question, tool and result of a vendor guide's section on tool calling.
TOOL_QUESTION = "Hey, quick check: is everything up and running?"
TOOL_QUESTION_AGAIN = "Call get_system_health now and tell me what it says."
HEALTH = "get_system_health"
HEALTH_TOOL = {
    "type": "function",
    "function": {
        "name": HEALTH,
        "description": (
            "Returns the current health status of the LLM runtime—use before critical operations to verify the "
            "service is live."
        ),
        "parameters": {"type": "object", "properties": {}},
    },
}
TOOL_RESULT = '{"status":"ok","uptime_seconds":372045}'
MENTIONS = re.compile(r"(?i)\bok\b|372[ ,.]?045|103 h|4\.3 d|4 d|health|running|operational|green|smooth")

# A tool whose arguments must come back as they were asked for.
WEATHER = "get_weather"
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": WEATHER,
        "description": "Returns the weather forecast of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "days": {"type": "integer", "description": "Number of days"},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


class Forecast:
    """A question for the weather tool: question (str), arguments (dict)."""

    def __init__(self, city, days):
        self.question = "What will the weather be in %s for the next %d days?" % (city, days)
        self.arguments = {"city": city, "days": days}

    def wrong(self, arguments):
        """What is wrong with the arguments of a call, None where they are the ones asked for."""
        for key, value in self.arguments.items():
            if key not in arguments:
                return "%s is missing" % key
            got = arguments[key]
            if isinstance(value, int):
                right = not isinstance(got, (bool, str)) and got == value
            else:  # Paris, France is Paris as well
                right = isinstance(got, str) and got.partition(",")[0].strip().casefold() == value.casefold()
            if not right:
                return "%s is %s instead of %s" % (key, json.dumps(got), json.dumps(value))
        unknown = sorted(set(arguments) - set(self.arguments))
        return "%s was never asked for" % ", ".join(unknown) if unknown else None


FORECASTS = (Forecast("Paris", 3), Forecast("Oslo", 5), Forecast("Madrid", 7))
REPORT_QUESTION = " Name the number of the report in your answer."


def weather_result(arguments):
    """(a tool's result as JSON, the number in it that nobody can guess)."""
    number = random.SystemRandom().randrange(10000, 100000)
    value = dict(arguments, forecast="sunny", temperature_celsius=21, report_number=number)
    return json.dumps(value), number


# -- instructions, long prompts ----------------------------------------------------------------------------------------

WORD = "BANANA"
SYSTEM_MESSAGE = "Always answer with the single word %s." % WORD
SYSTEM_QUESTION = "How are you?"
LONG_TOKENS = 2600  # what the long prompt takes at most


def long_prompt():
    """(a question of more than 4000 characters, the number in it that answers it)."""
    numbers = {box: 1000 + box * 7919 % 9000 for box in range(1, 161)}
    lines = ["The number in box %d is %d." % item for item in numbers.items()]
    return "\n".join([*lines, "", "Which number is in box 57? Answer with the number."]), numbers[57]


COUNTING = "Count from 1 to 120, one number on each line, nothing else."

# -- stand-ins ---------------------------------------------------------------------------------------------------------

STANDIN_WORDS = re.compile(r"(?i)stand-?in")


def is_standin(model_id):
    """Whether the model is a stand-in that answers in form only."""
    return "standin" in (model_id or "").lower().replace("-", "")


# -- residue -----------------------------------------------------------------------------------------------------------

_NAMES = "start|end|channel|message|return|call|constrain"
RESIDUE = re.compile(
    r"\|(?:%(names)s)\|"  # harmony's own tokens, whatever became of their brackets
    r"|<\|\s?(?:%(names)s)|\b(?:%(names)s)\s?\|>"  # and pieces of them
    r"|assistant(?:analysis|commentary|final)"  # the same with the tokens stripped
    r"|\A\s*(?:analysis|commentary|final)(?=[A-Z0-9])"
    r"|\b(?:analysis|commentary)\s+to="
    r"|\bto=(?:functions|browser|python|assistant)\b"
    r"|!!!!!!" % {"names": _NAMES}  # what broken weights and looping drafts write
)

# -- what errors of a server mean --------------------------------------------------------------------------------------

ENCODINGS = (
    "the engine cannot read the %s vocabulary: put %s into a folder and name that folder in %s (the role "
    "tiktoken_encodings does both)" % (FORMAT, VOCABULARY_FILE, VOCABULARY_VARIABLE)
)
DAMAGED_ENCODINGS = "%s in %s is damaged: replace it (sha256 %s) and restart the server" % (
    VOCABULARY_FILE,
    VOCABULARY_VARIABLE,
    VOCABULARIES[VOCABULARY]["sha256"],
)
# (statuses or None for any, pattern in the body of an error, cause or what tells it of the Engine)
HTTP = (
    (None, r"hash mismatch|could not split on ' '", DAMAGED_ENCODINGS),
    (None, r"(?i)unexpected tokens?\b|unexpected EOS|unknown role", lambda engine: engine.output_parser),
    (None, r"(?i)vocab file|HarmonyError", ENCODINGS),
)
# The same in the log of a server that does not get ready.
LOGS = ((r"hash mismatch", DAMAGED_ENCODINGS), (r"(?i)vocab file|HarmonyError", ENCODINGS))

# -- requests and answers ----------------------------------------------------------------------------------------------

RESIDUE_PROBE = "harmony-residue"
REASONING_FIELDS = ("reasoning", "reasoning_content")  # engines use the one or the other
LOW, HIGH = "low", "high"  # levels of effort that are compared; it knows medium as well
# Where a request says the effort: a key of its own, or inside another one.
EFFORT, EFFORT_INSIDE = EFFORT_PARAMETERS = ("reasoning_effort", "chat_template_args")


def effort(level, parameter):
    """The keys of a chat completion that set the reasoning effort. parameter: effort_parameter of the recipe."""
    value = {EFFORT: level}
    return {EFFORT_INSIDE: value} if parameter == EFFORT_INSIDE else value
