"""From the bytes of `POST /v1/chat/completions` to a `ChatRequest`, or the first error.

The order: bytes, `model`, `tool_choice`, `tools`, template options, `messages`, the parameters one by one,
`response_format`, then what does not go together. What needs the tokenizer, the template, media or the engine is
refused later.
"""

import logging
from typing import Any

from mindserve.contract.combinations import check_combinations
from mindserve.contract.context import ValidationContext
from mindserve.contract.failure import MAX_ECHO_CHARS, failure
from mindserve.contract.fields import UINT64_MAX
from mindserve.contract.json_body import decode_body
from mindserve.contract.json_values import Document, is_object
from mindserve.contract.messages import read_messages
from mindserve.contract.parameters import MODE_RULES, ModeRules
from mindserve.contract.request import ChatRequest, ToolChoiceMode
from mindserve.contract.response_format import read_response_format
from mindserve.contract.template_options import read_template_options
from mindserve.contract.tools import read_tool_choice, read_tools, settle_tool_choice
from mindserve.errors import ModelNotFound

MODEL_MISSING = "Request contains not model or model null"
MODEL_NOT_STRING = "Request param model must be string"
MODEL_EMPTY = "Request param model must be not empty"
LOGPROBS_CONTRADICTION = "Value error, when using top_logprobs, logprobs must be true or null in chat completions"
STREAM_OPTIONS_NOT_OBJECT = "stream_options must be object type."
INCLUDE_USAGE_NOT_BOOLEAN = "include_usage must be boolean type."

_HIGH_SEED = UINT64_MAX - 2**32
"""From here on a warning is logged (contract, `seed`: close to the maximum)."""

_log = logging.getLogger(__name__)


def parse_request(body: bytes, context: ValidationContext) -> ChatRequest:
    """The request in `body` by the rules of `context.mode`. Raises InvalidRequest (ModelNotFound among them)."""
    decoded = decode_body(body, max_depth=context.max_json_depth)
    document: Document = decoded if is_object(decoded) else {}
    rules = MODE_RULES[context.mode]
    model = _read_model(document, context, rules)
    choice = read_tool_choice(document)
    tools = read_tools(document)
    choice = settle_tool_choice(choice, tools)
    options = read_template_options(document, context)
    messages = read_messages(
        document.get("messages"), context, has_tools=choice.mode is not ToolChoiceMode.NONE, body_chars=len(body)
    )
    request = ChatRequest(
        model=model,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        chat_template=options.template,
        template_kwargs=options.kwargs,
        enable_thinking=options.enable_thinking,
        thinking_budget=options.thinking_budget,
        include_usage=rules.reads_stream_options and _reads_include_usage(document),
        **_read_parameters(document, rules),
        response_format=read_response_format(document),
    )
    check_combinations(request, context)
    return request


def _read_model(document: Document, context: ValidationContext, rules: ModeRules) -> str:
    model = document.get("model")
    if model is None:
        raise failure(MODEL_MISSING, param="model")
    if not isinstance(model, str):
        raise failure(MODEL_NOT_STRING, param="model")
    if not model:
        raise failure(MODEL_EMPTY, param="model")
    if model not in context.models:
        raise ModelNotFound(rules.unknown_model_text.format(model=model[:MAX_ECHO_CHARS]), param="model")
    return model


def _read_parameters(document: Document, rules: ModeRules) -> dict[str, Any]:
    """Keyword arguments of `ChatRequest`."""
    values = {field.name: field.read(document) for field in rules.fields}
    for name in ("stream", "use_beam_search", "ignore_eos"):
        values[name] = values[name] is True
    values["skip_special_tokens"] = values["skip_special_tokens"] is not False
    values["include_stop"] = values.pop("include_stop_str_in_output") is True
    values["logprobs"] = _settle_logprobs(values["logprobs"], values.pop("top_logprobs"))
    values["max_tokens"] = values.pop("max_completion_tokens", None) or values["max_tokens"]
    if values["top_k"] == 0:  # off in native mode
        values["top_k"] = -1
    if (values["seed"] or 0) >= _HIGH_SEED:
        _log.warning("seed %d is close to the maximum", values["seed"])
    return values


def _settle_logprobs(is_on: bool | None, candidates: int | None) -> int | None:
    """The number of candidates; `top_logprobs` alone, be it 0, turns logprobs on."""
    if is_on is False and candidates is not None:
        raise failure(LOGPROBS_CONTRADICTION, param="top_logprobs")
    if candidates is None:
        return 0 if is_on else None
    return candidates


def _reads_include_usage(document: Document) -> bool:
    options: Any = document.get("stream_options")
    if options is None:
        return False
    if not is_object(options):
        raise failure(STREAM_OPTIONS_NOT_OBJECT, param="stream_options")
    include_usage = options.get("include_usage")
    if include_usage is not None and type(include_usage) is not bool:
        raise failure(INCLUDE_USAGE_NOT_BOOLEAN, param="stream_options")
    return include_usage is True
