# Copyright: inference.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The usual causes of a failing probe: tables from symptom to cause, in the order in which they are tried.

module_utils/fleet_node/engines has the meaning of an engine's own answers, gpt_oss.py that of the model's answers.
"""

from __future__ import annotations

import re

from ..engines.base import ENGINE_DEAD
from ..engines.registry import ENGINES
from ..model import gpt_oss

# -- answers in which something is missing -----------------------------------------------------------------------------

MEMORY = "the accelerator ran out of memory: lower the batch size, the context or the memory fraction"
PARAMETER = (
    "this engine does not know a parameter of the request: the recipe's verify section names the "
    "parameter for the reasoning effort (effort_parameter)"
)
API_KEY = "the server asks for an API key and none was sent: set fleet_api_key to it"
API_KEY_REFUSED = (
    "the server refuses the API key in its file of secrets: it was started with another key, or a proxy in front of "
    "it asks for a key; run site.yml, which restarts it with this key"
)
LIMITED = "the server or something in front of it limits requests: verify when it is idle, or raise its limit"
GATEWAY = "a gateway answers on this port, and the server behind it does not"
NOT_READY = "the server says that it is not ready: the engine is loading, shutting down or dead; see its log"
FAILED = "the server failed on this request: its log has the traceback"
REFUSED = "the server refuses this request: its answer says why"
RESPONSES_MISSING = (
    "this engine has no /v1/responses: set responses_api: false in the recipe's verify section if it is not wanted"
)
MODEL_UNKNOWN = "the server does not serve the model by this name: see the probe model-id for the names that it lists"
PATH_UNKNOWN = "the server has no such path: another program has the port, or the recipe names a wrong path"
SHAPE = "the answer has not the OpenAI form: another program has the port, or a proxy in front of it rewrites it"

LENGTH = (
    "max_tokens is too small: reasoning ate it before an answer came; the server's context is short, or the model "
    "thinks without end (top_p below 1 and a corrupt checkpoint do that)"
)
CUT_OFF = (
    "the answer ran into max_tokens: the model writes without end (missing stop tokens, top_p below 1 and a corrupt "
    "checkpoint do that), or the server's context is very short"
)
EMPTY = (
    "the server answers 200 with nothing in it: the output parser dropped what the model wrote, or the checkpoint is "
    "corrupt"
)
NOT_STOPPED = (
    "finish_reason is not stop although the model answered: the output parser is not that of %s" % gpt_oss.NAME
)
WRONG_ANSWER = (
    "the model runs but does not compute: a corrupt or wrongly converted checkpoint, or a kernel that is wrong on this "
    "accelerator"
)
NO_SENSE = (
    "the answer is not one that this stand-in gives: a damaged checkpoint, or an output parser that garbles what the "
    "model wrote"
)
WRONG_SAMPLING = (
    "the server answers well with temperature 1.0 and max_tokens, and not so: its own defaults cut or spoil answers "
    "(`--generation-config`, `--override-generation-config`), or its sampler is wrong away from 1.0"
)
WRONG_STREAM = (
    "the streamed answer is not the right one: the streaming parser loses, repeats or garbles pieces, or the model "
    "does not compute (then chat fails as well)"
)
WRONG_RESPONSES = (
    "/v1/responses does not give the right answer: its own prompt or output parser is wrong, or the model does not "
    "compute (then chat fails as well)"
)
RESPONSES_INCOMPLETE = (
    "the status of the response is incomplete: it ran out of tokens, or the engine ended it on its own; its "
    "incomplete_details contain the reason"
)
RESPONSES_FAILED = "the status of the response is not completed although it came with 200: see the server's log"
RESPONSES_CUT = (
    "the stream of /v1/responses ended without response.completed: the engine broke off, or a proxy cuts long answers"
)
RESPONSES_NO_CALL = (
    "the model answered in words where a tool was offered to /v1/responses: the engine drops tools there"
)
WRONG_LONG = (
    "a fact in a prompt of more than 4000 characters is not found: prompts are cut, or attention or the KV cache goes "
    "wrong beyond a first bucket, chunk or window"
)
WRONG_SYSTEM = (
    "an instruction in the system message is not followed: the chat template or a proxy drops system messages"
)
WRONG_LATER = (
    "what was right at the beginning of the sequence is wrong at its end: state is left over between requests (KV "
    "cache, prefix cache, speculation), or several servers answer on this port"
)
MIXED_UP = (
    "the answer belongs to another request that was sent at the same time: a batch is taken apart in the wrong order, "
    "or a proxy mixes connections up"
)
WRONG_TOGETHER = (
    "answers are wrong when several requests come at once: batched kernels, the KV cache, or speculation over a batch"
)
UNASKED_CALL = "a tool call came although no tool was offered: the tool-call parser parses plain text as a call"
TOOL_ID = (
    "the call has no id: clients cannot return the tool's result; the tool-call parser is not that of %s" % gpt_oss.NAME
)
TOOL_ARGUMENTS_LOST = (
    "the arguments of the call differ from those in the question: the tool-call parser loses, changes or invents "
    "arguments"
)
TOOL_RESULT_IGNORED = (
    "the answer does not name the number that only the tool's result has: tool messages do not reach the prompt (a "
    "`--chat-template` or proxy that drops them)"
)
STREAM_NOT_JSON = (
    "an event of the stream is no JSON object: a proxy in front of the server rewrites or splits the stream, or the "
    "engine writes errors into it as plain text"
)
BUFFERED = (
    "all events come at once at the end: a proxy in front of the server buffers the stream (nginx: proxy_buffering "
    "off), or the engine does not stream"
)
NO_TOOL_CALL = (
    "the model answered in words both times: the tools do not reach it (a `--chat-template` that knows no tools), or "
    "the checkpoint is no %s" % gpt_oss.NAME
)
TOOL_NAME = "the call does not have the name of the offered tool: the tool-call parser is not that of %s" % gpt_oss.NAME
TOOL_ARGUMENTS = "the arguments of the call are no JSON object: the tool-call parser is not that of %s" % gpt_oss.NAME
TOOL_FINISH = "the call is there but finish_reason is not tool_calls: clients that wait for that will not call the tool"
NO_MESSAGE = "no message with text in output: the engine's responses parser dropped what the model wrote"
NO_EVENTS = "a 200 without a single event: the engine or a proxy in front of it does not stream"
NO_DONE = "the stream ended without `data: [DONE]`: the engine broke off, or a proxy in front of it cuts long answers"
STREAM_ERROR = "the engine failed in the middle of the stream: its log has the traceback"
STREAM_REASONING = (
    "the complete answer had reasoning and the stream has none: the streaming parser is not that of %s" % gpt_oss.NAME
)
CENSUS = (
    "fewer workers are registered than the plan has, and /health is 200 all the same: see the states and logs of the "
    "missing ones"
)


# -- the form of answers -----------------------------------------------------------------------------------------------

NOT_UTF8 = "the answer contains bytes that are not UTF-8: the engine cuts characters in pieces, or a proxy recodes them"
NOT_STRICT = (
    "the answer is no JSON that every client reads (NaN, Infinity, or a key twice): the engine or a proxy in front of "
    "it writes its own dialect"
)
ERROR_INSIDE = "an answer of 200 contains an error: clients mistake the answer for a good answer; see the server's log"
OTHER_CHOICE = (
    "there is not exactly one choice with the index 0: the answer of another request, or one that was not asked for"
)
NO_END = "the answer has no reason for its end (finish_reason): the engine broke off, or a proxy removed its end"
NO_CALLS = "finish_reason is tool_calls, and there is no call: the tool-call parser lost it"
SAME_ID = "calls have the same id: clients cannot assign results to calls"
OTHER_ID = "the id of a call changes within its stream: clients mistake it for two calls"
NO_SPACES = "words are joined: the detokenizer or the streaming parser loses blanks"
USAGE = "usage does not add up: clients that bill or budget by it go wrong (the engine's counters, or a proxy)"
AFTER_END = "something comes after finish_reason: clients have stopped reading by then, and lose it"
AFTER_DONE = "something comes after `data: [DONE]`: an error that clients never see, or another request's answer"
CUMULATIVE = (
    "each event repeats what came before: the engine or a proxy sends the text so far instead of the next piece"
)
CALL_IN_CONTENT = "the content contains the call as well: the tool-call parser does not remove what it has read"
NOT_OVER_HTTP = (
    "requests that follow each other on one connection do not get their own answers: the server or a proxy in front "
    "of it miscounts bodies"
)

# -- the content of answers --------------------------------------------------------------------------------------------

SURPLUS = (
    "the answer contains more than the question asked for: the model does not stop at its end (missing stop tokens), "
    "another model's chat template is in use, or the checkpoint is damaged"
)
PROMPT_SHOWN = (
    "the answer repeats the prompt: the engine returns prompt and completion together (echo), or its chat template is "
    "not that of %s" % gpt_oss.NAME
)
OTHER_ROLES = (
    "the answer continues with turns of a conversation: the chat template or the stop tokens are those of another model"
)
FOREIGN = (
    "tokens of another model or of a vocabulary, or text that was decoded wrongly: the tokenizer, the chat template or "
    "the checkpoint is not that of %s" % gpt_oss.NAME
)
WRONG_COUNT = (
    "a long answer is not what it must be: pieces are lost, repeated or garbled after some length (KV cache, sliding "
    "window, detokenizer, or a proxy that cuts)"
)
WRONG_TEXT = (
    "text that is not ASCII does not come back as it was sent: the request or the answer is recoded on its way, or the "
    "detokenizer breaks characters"
)
WRONG_DEVELOPER = (
    "an instruction in a developer message is not followed: the chat template or a proxy drops developer messages"
)
WRONG_TURNS = "earlier messages of the assistant do not reach the model: the chat template or a proxy drops them"
CHOICE_IGNORED = "tool_choice is not followed: the engine or a proxy in front of it drops the parameter"
STOP_IGNORED = "the answer continues after a stop sequence: the engine or a proxy in front of it drops `stop`"
OTHER_CONTEXT = (
    "the context that the server lists is not the planned context: it was started with other arguments, or the engine "
    "lowered it to what fits its memory"
)
OPEN = (
    "a request without the right API key is served although a key is planned: the server was started without it, or "
    "without the middleware that asks for it on all paths; docs/using/api-keys.md"
)
STREAMED_OTHERWISE = "the streamed answer differs from the complete answer: the streaming parser changes it"

# a well-formed answer that is wrong: it may be a slip of a sampled model
WRONG = (
    WRONG_ANSWER, WRONG_SAMPLING, WRONG_STREAM, WRONG_RESPONSES, WRONG_LONG, WRONG_SYSTEM, WRONG_LATER, WRONG_TOGETHER,
    WRONG_COUNT, WRONG_TEXT, WRONG_DEVELOPER, WRONG_TURNS, SURPLUS, RESPONSES_NO_CALL, TOOL_ARGUMENTS_LOST,
    TOOL_RESULT_IGNORED, CHOICE_IGNORED,
)  # fmt: skip

# -- the tables --------------------------------------------------------------------------------------------------------

# http_client.FAILURES -> cause
TRANSPORT = {
    "refused": (
        "nothing listens on this port: the server is not running, is still loading, or binds another address; see its "
        "state and log"
    ),
    "unreachable": "the address that the server binds is not one of this node's",
    "reset": "the server closed the connection without an answer: it is starting, stopping or crashed on the request",
    "timeout": (
        "the server took the request and did not finish it: it is still compiling or warming up, overloaded, or hangs"
    ),
    "cut": ("the server or something in front of it broke off in the middle of the answer: see its log for a crash"),
    "protocol": "what listens on this port does not speak HTTP: another program has the port",
    "too-large": "what listens on this port is not an OpenAI-compatible server: another program has the port",
}

# (statuses or None for any, pattern in the body, cause); those of the model and of the engines come before
HTTP = (
    (None, r"(?i)context length|context_length_exceeded", lambda engine: engine.context),
    (None, r"(?i)engine is dead", ENGINE_DEAD),
    (None, r"(?i)out of memory", MEMORY),
    ((400, 422), r"(?i)extra inputs are not|extra_forbidden|unsupported (parameter|field)|unknown field", PARAMETER),
    ((401, 403), r"", API_KEY),
    ((429,), r"", LIMITED),
    ((502, 504), r"", GATEWAY),
    ((503,), r"", NOT_READY),
)


def transport_cause(response):
    """The cause behind an answer that failed on the way (response.error is set)."""
    return TRANSPORT[response.error]


def text_cause(text, engine, status=None):
    """The cause that the words of an error point at, or None. engine: the Engine that wrote them, as far as known; it
    may pass on the words of an engine behind it."""
    others = [row for other in ENGINES.values() for row in other.http]
    for statuses, pattern, cause in (*gpt_oss.HTTP, *engine.http, *others, *HTTP):
        if (statuses is None or status in statuses) and re.search(pattern, text):
            return cause if isinstance(cause, str) else cause(engine)
    return None


def log_cause(lines, engine, stalled):
    """The cause that the log ([str], the newest last) of a server that does not become ready points at, or None.

    stalled: whether it exceeds its start budget.
    """
    last = next((line for line in reversed(lines) if line.strip()), "")
    text = "\n".join(lines)
    rows = [
        *((last, row) for row in (engine.stalls if stalled else ())),
        *((text, row) for row in (*gpt_oss.LOGS, *engine.logs)),
    ]
    return next((cause for words, (pattern, cause) in rows if re.search(pattern, words)), None)


def http_cause(response, path, engine):
    """The cause behind an answer of `path` whose status is not the expected one."""
    cause = text_cause(response.text, engine, response.status)
    if cause:
        return cause
    if response.status == 404:
        if path == "/v1/responses":
            return RESPONSES_MISSING
        return MODEL_UNKNOWN if re.search(r"(?i)model", response.text) else PATH_UNKNOWN
    return FAILED if response.status >= 500 else REFUSED


def residue(text, engine):
    """None, or (the words around the first token in `text` that no client must see, its cause)."""
    found, cause = gpt_oss.RESIDUE.search(text), engine.residue
    if found and found.group().startswith("!"):
        cause = engine.exclamation
    if not found:
        found, cause = gpt_oss.FOREIGN.search(text), FOREIGN
    if not found:
        return None
    start = max(0, found.start() - 20)
    return text[start : start + 120], cause


def model_cause(expected, listed, engine):
    """Why /v1/models does not list exactly `expected`; `listed` are the ids in the answer."""
    if not listed:
        return engine.no_models
    own = engine.model_cause(expected, listed[0]) if len(listed) == 1 else None
    words = "the server lists %s instead of %s: its served model name is another, or another server has the port"
    return own or words % (", ".join(listed), expected)


def effort_cause(parameter):
    """Why a low and a high effort make no difference."""
    other = next(one for one in gpt_oss.EFFORT_PARAMETERS if one != parameter)
    return (
        "%s does not reach the prompt: the engine wants %s (effort_parameter of the recipe's verify section), or a "
        "`--chat-template` drops it" % (parameter, other)
    )


def idle_cause(idle):
    """Why the workers named in `idle` handled none of the requests."""
    return (
        "%s handled none of the requests: the others serve without it, so nothing is disaggregated (its endpoint is "
        "not registered, or the frontend does not use it)" % ", ".join(idle)
    )


def still_cause(still):
    """Why the workers named in `still` fetched no KV cache although they handled requests."""
    return (
        "%s fetched no KV cache from the prefill workers: it computes prompts itself, so nothing is disaggregated (its "
        "KV connector is not set up as the prefill workers' is, or cannot reach them)" % ", ".join(still)
    )


def too_slow(seconds, why):
    """The cause if the complete sequence exceeds its time; why: the origin of that limit."""
    return (
        "the whole sequence may take %g s (%s) and did not get through: the server is far too slow; "
        "see the ms of the probes before" % (seconds, why)
    )
