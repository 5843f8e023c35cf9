# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The properties of gpt-oss on a node: its checkpoints, harmony with its vocabulary and parsers, and its probes.

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

# -- the format of prompts and answers, and what engines need to parse it ----------------------------------------------

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
REASONING_PARSERS = {"dynamo": "gpt_oss", "sglang": "gpt-oss", "vllm": "openai_gptoss"}
TOOL_CALL_PARSERS = {"dynamo": "harmony", "sglang": "gpt-oss", "vllm": "openai"}
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
MOST_AT_ONCE = 32
MANY_SUMS = tuple(Sum(11 + step, 98 - step) for step in range(MOST_AT_ONCE))  # asked at once

_BETWEEN_DIGITS = re.compile(r"(?<=\d)[\s,_*'\u2009\u202f]+(?=\d)")


def says_number(text, number):
    """Whether `text` contains this number as a separate number, in any spelling: 391., **391**, 3 9 1, 48,213."""
    text = unicodedata.normalize("NFKC", text)
    wanted = re.compile(r"(?<![\d])(?<!\d[.,])%d(?!\d|[.,]\d)" % number)
    return bool(wanted.search(text) or wanted.search(_BETWEEN_DIGITS.sub("", text)))


# What an answer that must be a number may contain in addition to it: only the calculation.
_WORDS = frozenset(re.findall(r"\S+", """
    a above add added adding alone an and answer answered are as asked at be because box boxed by calculate
    calculated calculation certainly check chose chosen compute computed computes computing contains correct
    correctly course each equal equals exact exactly final find first follows for four from get gets give given
    gives got has have hence here here's i in is it it's its just minus multiplication multiplied multiply
    multiplying next not number numbers of off okay one only or out picked plus product result results right
    second so split stands step steps subtract sum sure ten tens than that that's the then there therefore this
    three thus times to total two units value verify was we which which's will with x yes yields you your
"""))  # fmt: skip
_MARKUP = re.compile(
    r"\\(?:times|cdot|boxed|text|textbf|mathbf|mathrm|quad|qquad|left|right|begin|end|approx|implies|Rightarrow|frac)\b"
    r"|\{(?:aligned|align\*?|equation\*?)\}"
)
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
_LONGEST_SUM = 600  # characters; the description of any calculation of a product fits into them


def strange_words(text):
    """The words in `text` that no answer to these questions contains, "" if there are none."""
    found = [word for word in _WORD.findall(text) if word.lower().replace("\u2019", "'") not in _WORDS]
    return " ".join(found[:8])


def surplus(text, number):
    """What an answer that must be this number contains in addition to it, in words; None if there is nothing."""
    text = _MARKUP.sub(" ", unicodedata.normalize("NFKC", text))
    strange = strange_words(text)
    if strange:
        return strange
    if len(text.strip()) > _LONGEST_SUM:
        return "%d characters" % len(text)
    if len(text) - len(text.rstrip()) > 20:
        return "blanks at its end"
    plain = _BETWEEN_DIGITS.sub(lambda found: "" if found.group().strip(" ") in ("", ",") else found.group(), text)
    after = plain.rpartition(str(number))[2]
    again = re.match(r"[\s*.,;:!|/\\$-]*(?=\d)", after)
    if again:
        return after.strip()[:40]
    twice = re.search(r"(?<!\d)%d[\s.,;:|]+%d(?!\d)" % (number, number), text)
    if twice or re.search(r"([^\s\w])\1{5,}", text):
        return (twice.group() if twice else text.strip())[:40]
    return None


# Questions of one kind, so that they require the same amount of thinking.
EFFORT_QUESTIONS = tuple(
    "Which numbers between 1 and %d are the sum of two squares in two different ways?" % most
    for most in (60, 65, 70, 75, 80, 85, 90, 95, 100, 105, 110, 115)
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

# A tool whose call must have the requested arguments.
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
        """What is wrong with the arguments of a call, None if they are the requested arguments."""
        for key, value in self.arguments.items():
            if key not in arguments:
                return "%s is missing" % key
            got = arguments[key]
            if isinstance(value, int):
                right = not isinstance(got, (bool, str)) and got == value
            else:  # Paris, France is Paris as well
                right = isinstance(got, str) and plain(got.partition(",")[0]) == plain(value)
            if not right:
                return "%s is %s instead of %s" % (key, json.dumps(got), json.dumps(value))
        unknown = sorted(set(arguments) - set(self.arguments))
        return "%s was never asked for" % ", ".join(unknown) if unknown else None


def plain(text):
    """`text` without accents and capitals: Zurich is Zürich as well."""
    letters = unicodedata.normalize("NFKD", text.strip().casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


FORECASTS = tuple(
    Forecast(city, days)
    for city, days in (
        ("Paris", 3), ("Oslo", 5), ("Madrid", 7), ("Zürich", 6), ("Vienna", 4), ("Lisbon", 2), ("Dublin", 8),
    )
)  # fmt: skip
REPORT_QUESTION = " Name the number of the report in your answer."


def weather_result(arguments):
    """(a tool's result as JSON, the number in it, which is random)."""
    number = a_number()
    value = dict(arguments, forecast="sunny", temperature_celsius=21, report_number=number)
    return json.dumps(value), number


# -- instructions, long prompts ----------------------------------------------------------------------------------------

SYSTEM_WORD, DEVELOPER_WORD = "BANANA", "ORANGE"
SYSTEM_QUESTION = "How are you?"


def order(word):
    """An instruction to answer with this word."""
    return "Always answer with the single word %s." % word


def is_word(text, word):
    """Whether `text` is this word and nothing else, in any markup."""
    before, found, after = text.lower().partition(word.lower())
    return bool(found) and len(text) < len(word) + 60 and not strange_words(before) and not re.search(r"\w", after)


# Only an earlier message of the assistant in the conversation contains the answer.
CHOOSE = "Choose a number with five digits. Answer with the number."
CHOSEN = "Which number did you choose? Answer with the number."


def a_number():
    """A random number."""
    return random.SystemRandom().randrange(10000, 100000)


TEXT = "Zürich, Malmö, São Paulo, Ελλάδα, Москва, 東京, 서울, 🙂🚀👍🏽 and 12 lazy dogs"
TEXT_QUESTION = "Repeat this text exactly, and nothing else: " + TEXT


def is_text(text):
    """Whether `text` is TEXT: each character of it, in any normal form, perhaps in quotes."""
    given = unicodedata.normalize("NFC", text).replace("\ufe0f", "")
    before, found, after = given.partition(unicodedata.normalize("NFC", TEXT))
    return bool(found) and not strange_words(before) and not re.search(r"\w", after)


LONG_TOKENS = 2600  # of the long prompt, at most


def long_prompt():
    """(a question of more than 4000 characters, the number in it that answers it)."""
    numbers = {box: 1000 + box * 7919 % 9000 for box in range(1, 161)}
    lines = ["The number in box %d is %d." % item for item in numbers.items()]
    return "\n".join([*lines, "", "Which number is in box 57? Answer with the number."]), numbers[57]


COUNT = 120
COUNTING = "Count from 1 to %d, one number on each line, nothing else." % COUNT
COUNT_TOKENS = 700  # for the count, with a little thinking
STOP_AT = 57


def counted(text, until=COUNT):
    """None if `text` counts from 1 to `until` and contains nothing else; otherwise what is wrong, in words."""
    numbers = re.findall(r"\d+", text)
    wanted = [str(number) for number in range(1, until + 1)]
    for position, (number, right) in enumerate(zip(numbers, wanted)):
        if number != right:
            return "%s is in the place of %s" % (number[:20], right if position else "the first number, 1,")
    if len(numbers) != len(wanted):
        return "it ends at %s" % (numbers[-1] if numbers else "nothing") + " instead of %d" % until
    text = re.sub(r"```\w*", "", text)
    other = re.search(r"[^\d\s.,:`*-]", text if strange_words(text) else text[text.index("1") :])
    return "it also contains %r" % text[max(0, other.start() - 10) : other.start() + 30] if other else None


# -- stand-ins ---------------------------------------------------------------------------------------------------------

STANDIN_WORDS = re.compile(r"(?i)stand-?in")
STANDIN_STOP = "plumbing"  # a word in the middle of its answer to every question


def is_standin(model_id):
    """Whether the model is a stand-in that answers in form only."""
    return "standin" in (model_id or "").lower().replace("-", "")


# -- residue -----------------------------------------------------------------------------------------------------------

_NAMES = "start|end|channel|message|return|call|constrain"
RESIDUE = re.compile(
    r"\|(?:%(names)s)\|"  # harmony's own tokens, with or without their brackets
    r"|<\|\s?(?:%(names)s)(?!\w)|\b(?:%(names)s)\s?\|>"  # and pieces of them
    r"|assistant(?:analysis|commentary|final)"  # the same with the tokens stripped
    r"|\A\s*(?:analysis|commentary|final)(?=[A-Z0-9])"
    r"|\b(?:analysis|commentary)\s+to="
    r"|\bto=(?:functions|browser|python|assistant)\b"
    r"|!!!!!!" % {"names": _NAMES}  # what broken weights and looping drafts write
)

# Tokens of other models, bytes as their vocabularies spell them, and text that was decoded wrongly.
FOREIGN = re.compile(
    r"<\s?/?[|\uff5c]\s?[^<>\n]{0,40}?[|\uff5c]\s?>|&lt;/?[|\uff5c]"  # <|im_end|>, <|eot_id|>, also of full width
    r"|[|<]/?(?:im_(?:start|end|sep)|endoftext|endofprompt|eot_id|eom_id|(?:start|end)_header_id|begin_of_text"
    r"|end_of_text|python_tag|fim_\w+|user|assistant|system|observation|(?:start|end)_of_(?:turn|role))[|>]"
    r"|\b(?:im_(?:start|end)|eot_id|endoftext)\b"
    r"|(?:<|&lt;)/?(?:s|n|pad|unk|bos|eos|cls|sep|mask|eod|thought|think(?:ing)?|reasoning|reflection|scratchpad|answer"
    r"|final|response|output|analysis|tools?|tool_calls?|tool_response|function_calls?|invoke|extra_id_\d+|unused\d+"
    r"|reserved\w*|turn|image|seed:\w+|minimax:\w+|\w+_token)\s?/?(?:>|&gt;)"
    r"|<(?:function|parameter|tool)=|<0x[0-9A-Fa-f]{2}>|<</?SYS>>"
    r"|\[/?(?:INST|SYS|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|SYSTEM_PROMPT|THINK|PAD|UNK|CLS|SEP|MASK|BOS|EOS|[gs]MASK)"
    r"\]|[\u0120\u010a\u2581]|[\u00c2-\u00c5\u00ce-\u00d1\u00e2-\u00f0][\u0122-\u0142]|\w ##\w|\w@@ \w"  # BPE
    r"|[\u00c2\u00c3][\u0080-\u00bf]|\u00e2[\u0080-\u009f\u20ac]|\u00f0[\u0178\u009f]|\u00ef\u00bb\u00bf"  # Latin-1
    r"|[\ufffd\ud800-\udfff\ufeff\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]"
)
# Turns of a conversation in the text: the words of another template, or a second turn that the model made up.
ROLES = re.compile(
    r"(?im)^[\s#*>_-]*(?:user|human|assistant|system|developer|instruction|instructions|input|bot|ai|gpt|model|tool"
    r"|question|q)[\s*_]*:"
    r"|^[\s#*>_-]*#+\s*(?:user|human|assistant|system|instruction|response|input|output|end)\b"
    r"|^\s*(?:user|human|assistant|system|developer|model|tool|observation)\s*$"
    r"|\d\s?(?:user|human|assistant|system|developer|model)\b"
    r"|\b(?:BEGINNING OF CONVERSATION|USER|ASSISTANT|HUMAN|GPT4 Correct (?:User|Assistant))\s*:"
)
# After a tool a list such as "System: up" is an answer.
SPEAKERS = re.compile(r"(?im)^[\s#*>_-]*(?:user|human|assistant)[\s*_]*(?::|$)|\d\s?(?:user|assistant)\b")
# Phrases of this model's reasoning that are never in its answers.
THINKING = re.compile(
    r"(?i)\b(?:the )?user (?:asks|asked|wants|says|said|is asking|just|needs|has asked|sent)\b"
    r"|\b(?:we|i) (?:need|have|should|must|are asked|will just) (?:to )?"
    r"(?:compute|answer|respond|reply|output|produce|count|say|follow|repeat|calculate|think)\b"
    r"|\b(?:let me|let's|lets) (?:think|compute|calculate|respond|answer|produce)\b"
    r"|\b(?:developer|system) (?:message|instructions?|prompt)\b|\bknowledge cutoff\b|\bvalid channels\b"
    r"|\breasoning: (?:low|medium|high)\b|\byou are chatgpt\b"
)


def shown_prompt(text, prompt):
    """The part of a prompt's message that an answer repeats, or None. Short messages are too common to count."""
    lines = [" ".join(line.split()).casefold() for line in prompt.splitlines()]
    lines = [line for line in lines if len(line) >= 12]
    flat = " ".join(text.split()).casefold()
    found = [line for line in lines if line in flat]
    return found[0] if found and (len(found) > 1 or len(lines) == 1) else None


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
# (statuses or None for any, pattern in the body of an error, cause or a function of the Engine that returns it)
HTTP = (
    (None, r"hash mismatch|could not split on ' '", DAMAGED_ENCODINGS),
    (None, r"(?i)unexpected tokens?\b|unexpected EOS|unknown role", lambda engine: engine.output_parser),
    (None, r"(?i)vocab file|HarmonyError", ENCODINGS),
)
# The same in the log of a server that does not become ready.
LOGS = ((r"hash mismatch", DAMAGED_ENCODINGS), (r"(?i)vocab file|HarmonyError", ENCODINGS))

# -- requests and answers ----------------------------------------------------------------------------------------------

RESIDUE_PROBE = "harmony-residue"
REASONING_FIELDS = ("reasoning", "reasoning_content")  # an engine uses one of them
LOW, HIGH = "low", "high"  # levels of effort that are compared; the model also has medium
# Where a request contains the effort: in a separate key, or inside another key.
EFFORT, EFFORT_INSIDE = EFFORT_PARAMETERS = ("reasoning_effort", "chat_template_args")


def effort(level, parameter):
    """The keys of a chat completion that set the reasoning effort. parameter: effort_parameter of the recipe."""
    value = {EFFORT: level}
    return {EFFORT_INSIDE: value} if parameter == EFFORT_INSIDE else value
