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
PARAMETER = "this engine does not know a parameter of the request: set effort_parameter in the recipe's verify section"
API_KEY = "the server asks for an API key and none was sent: set fleet_api_key to it"
API_KEY_REFUSED = "the server refuses the API key in its file of secrets: run site.yml, or check the proxy before it"
LIMITED = "the server or something in front of it limits requests: verify when it is idle, or raise its limit"
GATEWAY = "a gateway answers on this port, and the server behind it does not"
NOT_READY = "the server reports that it is not ready: the engine is loading, shutting down or dead; see its log"
FAILED = "the server failed on this request: its log has the traceback"
REFUSED = "the server refuses this request: its answer contains the reason"
RESPONSES_MISSING = "this engine has no /v1/responses: set responses_api: false in verify if it is not required"
MODEL_UNKNOWN = "the server does not serve the model by this name: see the probe model-id for the names that it lists"
PATH_UNKNOWN = "the server has no such path: another program has the port, or the recipe names a wrong path"
SHAPE = "the answer has not the OpenAI form: another program has the port, or a proxy in front of it rewrites it"

LENGTH = "max_tokens ended the reasoning: the context is short, or the model does not stop (top_p < 1, bad checkpoint)"
CUT_OFF = "max_tokens ended the answer: missing stop tokens, top_p below 1, a corrupt checkpoint or a short context"
EMPTY = "the answer has status 200 and no content: the output parser dropped it, or the checkpoint is corrupt"
NOT_STOPPED = "finish_reason is not stop after a complete answer: the output parser is not that of the model"
WRONG_ANSWER = "the model runs but does not compute: a corrupt or wrongly converted checkpoint, or a wrong kernel"
NO_SENSE = "this stand-in does not give such an answer: a damaged checkpoint, or an output parser that garbles answers"
WRONG_SAMPLING = "right only with temperature 1.0 and max_tokens: see `--generation-config` and the sampler"
WRONG_STREAM = "the streamed answer is wrong: the streaming parser, or a wrong model (then chat fails too)"
WRONG_RESPONSES = "/v1/responses answers wrongly: its prompt or output parser, or the model (then chat fails too)"
RESPONSES_INCOMPLETE = "the response is incomplete: out of tokens, or ended by the engine; see its incomplete_details"
RESPONSES_FAILED = "the status of the response is not completed although it came with 200: see the server's log"
RESPONSES_CUT = "the stream ended without response.completed: the engine broke off, or a proxy cuts long answers"
RESPONSES_NO_CALL = "the model did not call the tool that /v1/responses offered: the engine drops tools there"
WRONG_LONG = "a fact in a prompt of 4000 characters is lost: a cut prompt, or attention or KV cache beyond a window"
WRONG_SYSTEM = "a system message has no effect: the chat template or a proxy drops system messages"
WRONG_LATER = "right at first and wrong later: state of earlier requests (KV or prefix cache), or several servers"
MIXED_UP = "the answer belongs to a concurrent request: a batch in the wrong order, or a proxy mixes connections"
WRONG_TOGETHER = "answers to concurrent requests are wrong: batched kernels, the KV cache, or speculation over a batch"
UNASKED_CALL = "a tool call came although no tool was offered: the tool-call parser parses plain text as a call"
TOOL_ID = "the call has no id, so no result can be returned: the tool-call parser is not that of the model"
TOOL_ARGUMENTS_LOST = "the arguments differ from those in the question: the tool-call parser loses or changes arguments"
TOOL_RESULT_IGNORED = "the tool's result is not in the answer: a `--chat-template` or a proxy drops tool messages"
STREAM_NOT_JSON = "an event of the stream is no JSON object: a proxy rewrites it, or the engine writes plain errors"
BUFFERED = "all events came at once: a proxy buffers them (nginx: proxy_buffering off), or the engine does not stream"
NO_TOOL_CALL = "no tool call in two answers: a `--chat-template` without tools, or a model without tools"
TOOL_NAME = "the call does not have the name of the tool: the tool-call parser is not that of the model"
TOOL_ARGUMENTS = "the arguments of the call are no JSON object: the tool-call parser is not that of the model"
DROPPED_CALL = "the model calls a tool and the answer has no call: the tool-call parser is not that of the model"
NO_REASONING = "no answer has reasoning: the reasoning parser is not that of the model, or the template turns it off"
TOOL_FINISH = "a call without the finish_reason tool_calls: clients that wait for that do not call the tool"
NO_MESSAGE = "no message with text in output: the engine's responses parser dropped what the model wrote"
NO_EVENTS = "a 200 without a single event: the engine or a proxy in front of it does not stream"
NO_DONE = "the stream ended without `data: [DONE]`: the engine broke off, or a proxy cuts long answers"
STREAM_ERROR = "the engine failed in the middle of the stream: its log has the traceback"
STREAM_REASONING = "only the complete answer has reasoning: the streaming parser is not that of the model"
CENSUS = "fewer workers are registered than planned, although /health is 200: see the missing workers' logs"


# -- the form of answers -----------------------------------------------------------------------------------------------

NOT_UTF8 = "the answer contains bytes that are not UTF-8: the engine splits characters, or a proxy recodes them"
NOT_STRICT = "not every client can read the JSON (NaN, Infinity, a key twice): the dialect of the engine or of a proxy"
ERROR_INSIDE = "an answer of 200 contains an error, which clients mistake for a good answer; see the server's log"
OTHER_CHOICE = "there is not exactly one choice with the index 0: the answer of another request, or a surplus answer"
NO_END = "the answer has no finish_reason: the engine broke off, or a proxy removed its end"
NO_CALLS = "finish_reason is tool_calls without a call: the tool-call parser lost it"
SAME_ID = "calls have the same id: clients cannot assign results to calls"
OTHER_ID = "the id of a call changes within its stream: clients mistake it for two calls"
NO_SPACES = "words are joined: the detokenizer or the streaming parser loses blanks"
USAGE = "usage does not add up, and clients that bill or budget by it go wrong: the engine's counters, or a proxy"
AFTER_END = "something follows finish_reason: clients have stopped reading by then, and lose it"
AFTER_DONE = "something follows `data: [DONE]`: an error that clients never see, or another request's answer"
CUMULATIVE = "each event repeats the events before it: the engine or a proxy sends the complete answer so far"
CALL_IN_CONTENT = "the content contains the call as well: the tool-call parser does not remove it"
NOT_OVER_HTTP = "requests on one connection do not get their own answers: the server or a proxy miscounts bodies"

# -- the content of answers --------------------------------------------------------------------------------------------

SURPLUS = "more than the question asked for: missing stop tokens, another chat template, or a damaged checkpoint"
PROMPT_SHOWN = "the answer repeats the prompt: an echo, or a chat template that is not that of the model"
OTHER_ROLES = "the answer continues with turns of a conversation: another model's chat template or stop tokens"
FOREIGN = "tokens of another model: the tokenizer, the chat template or the checkpoint is not that of the model"
WRONG_COUNT = "a long answer loses or repeats pieces: KV cache, sliding window, detokenizer, or a proxy that cuts"
WRONG_TEXT = "non-ASCII characters come back changed: the request or answer is recoded, or the detokenizer breaks them"
WRONG_DEVELOPER = "a developer message has no effect: the chat template or a proxy drops developer messages"
WRONG_TURNS = "earlier assistant messages do not reach the model: the chat template or a proxy drops them"
CHOICE_IGNORED = "tool_choice is not followed: the engine or a proxy in front of it drops the parameter"
STOP_IGNORED = "the answer continues after a stop sequence: the engine or a proxy in front of it drops `stop`"
OTHER_CONTEXT = "the context is not as planned: other arguments, or the engine lowered it to fit its memory"
OPEN = "the planned API key is not required: the key or the middleware is missing; docs/using/api-keys.md"
ADAPTER_MISSING = "a LoRA adapter is not listed: the server was started without it, or has unloaded it"
SCHEMA_IGNORED = "the answer does not follow response_format: the engine or a proxy in front of it drops the schema"
VECTORS = "the answer is not a vector for each input, in their order: see the server's log"
VECTOR_SIZE = "the vectors do not have the model's size: another model, or the engine shortens them"
VECTOR_ORDER = (
    "sentences of one subject are less similar than others: another pooling than the model's, or a damaged model"
)
VECTOR_CHANGES = "an input has different vectors in different requests: batches are mixed up, or a kernel is wrong"
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
    "refused": "nothing listens on this port: the server is stopped, is loading, or binds another address; see its log",
    "unreachable": "the address that the server binds is not one of this node's",
    "reset": "the server closed the connection without an answer: it is starting, stopping or crashed on the request",
    "timeout": "the server did not finish the request: it compiles, warms up, is overloaded, or hangs",
    "cut": "the server or a proxy broke off in the middle of the answer: see its log for a crash",
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
    engines = [(None, *row) for one in (engine, *ENGINES.values()) for row in one.http]
    for statuses, pattern, cause in (*gpt_oss.HTTP, *engines, *HTTP):
        if (statuses is None or status in statuses) and re.search(pattern, text):
            return cause if isinstance(cause, str) else cause(engine)
    return None


def log_cause(lines, engine):
    """The cause that the log ([str], the newest last) of a server that does not become ready points at, or None."""
    text = "\n".join(lines)
    found = ((cause, re.search(pattern, text)) for pattern, cause in (*gpt_oss.LOGS, *engine.logs))
    return next((cause % match.groups() if match.groups() else cause for cause, match in found if match), None)


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
    words = "%s does not reach the prompt: the engine wants %s (effort_parameter), or a `--chat-template` drops it"
    return words % (parameter, other)


def idle_cause(idle):
    """Why the workers named in `idle` handled none of the requests."""
    words = "%s handled no request, so nothing is disaggregated: not registered, or not used by the frontend"
    return words % ", ".join(idle)


def still_cause(still):
    """Why the workers named in `still` fetched no KV cache although they handled requests."""
    words = (
        "%s fetched no KV cache from the prefill workers: its KV connector differs from theirs, or cannot reach them"
    )
    return words % ", ".join(still)


def too_slow(seconds, why):
    """The cause if the complete sequence exceeds its time; why: the origin of that limit."""
    return "the server is far too slow for the sequence in %g s (%s); see the ms of the probes" % (seconds, why)
