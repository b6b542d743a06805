"""Parameters that do not go together: with each other, or with what is configured. Checked in this order.

Values that change nothing are no use of a parameter: null, `n: 1`, `best_of: 1`, `false`, empty lists.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mindserve.contract.context import ValidationContext
from mindserve.contract.failure import failure
from mindserve.contract.request import ChatRequest, ResponseFormatKind, ToolChoiceMode

_Condition = Callable[[ChatRequest, ValidationContext], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A condition that no request may meet."""

    applies: _Condition
    text: str
    """`{n}`, `{best_of}` and `{max_n}` stand for those values, None where absent."""
    param: str


def check_combinations(request: ChatRequest, context: ValidationContext) -> None:
    """Raise InvalidRequest for the first exclusion that the request meets."""
    for exclusion in EXCLUSIONS:
        if exclusion.applies(request, context):
            text = exclusion.text.format(n=request.n, best_of=request.best_of, max_n=context.max_n)
            raise failure(text, param=exclusion.param)


def _samples(request: ChatRequest) -> bool:
    return not request.use_beam_search


def _wants_several(request: ChatRequest) -> bool:
    """Beam search takes `best_of` for its type only."""
    return (request.n or 1) > 1 or (_samples(request) and (request.best_of or 1) > 1)


def _may_call(request: ChatRequest) -> bool:
    return bool(request.tools) and request.tool_choice.mode is not ToolChoiceMode.NONE


def _is_structured(request: ChatRequest) -> bool:
    return request.response_format.kind is not ResponseFormatKind.TEXT


def _speculates(context: ValidationContext) -> bool:
    return not context.plugin_types.isdisjoint(("mtp", "la", "memory_decoding"))


def _is_deepseek(context: ValidationContext) -> bool:
    return context.model_type.startswith("deepseek")


def _best_of_below_n(request: ChatRequest, _: ValidationContext) -> bool:
    return _samples(request) and None not in (request.n, request.best_of) and (request.best_of or 0) < (request.n or 0)


def _best_of_differs_in_stream(request: ChatRequest, _: ValidationContext) -> bool:
    return _samples(request) and request.stream and request.best_of not in (None, request.n)


def _several_without_sampling(request: ChatRequest, _: ValidationContext) -> bool:
    return _samples(request) and request.temperature == 0 and _wants_several(request)


EXCLUSIONS: tuple[Exclusion, ...] = (
    Exclusion(
        param="n",
        applies=lambda request, context: (request.n or 1) > context.max_n,
        text="The n parameter ({n}) exceeds 'maxN' ({max_n})",
    ),
    Exclusion(
        param="best_of",
        applies=_best_of_differs_in_stream,
        text="best_of must be equal to n in stream mode, but best_of is {best_of}, n is {n}.",
    ),
    Exclusion(
        param="best_of",
        applies=_best_of_below_n,
        text="best_of must be greater than or equal to n, but best_of is {best_of}, n is {n}.",
    ),
    Exclusion(
        param="temperature",
        applies=_several_without_sampling,
        text="best_of/n can not greater than 1 without using beam search when temperature is 0 or not set, "
        "but best_of is {best_of}, n is {n}.",
    ),
    Exclusion(
        param="use_beam_search",
        applies=lambda request, context: request.use_beam_search and _speculates(context),
        text="beam search cannot be used with plugins",
    ),
    Exclusion(
        param="logprobs",
        applies=lambda request, context: request.logprobs is not None and _speculates(context),
        text="logprobs cannot be used with plugins",
    ),
    Exclusion(
        param="n",
        applies=lambda request, context: _wants_several(request) and _speculates(context),
        text="best_of/n > 1 cannot be used with plugins",
    ),
    Exclusion(
        param="response_format",
        applies=lambda request, context: _is_structured(request) and "mtp" in context.plugin_types,
        text="structured output (response_format) cannot be used with mtp",
    ),
    Exclusion(
        param="use_beam_search",
        applies=lambda request, context: request.use_beam_search and _is_deepseek(context),
        text="beam search cannot be used with deepseek",
    ),
    Exclusion(
        param="n",
        applies=lambda request, context: _wants_several(request) and _is_deepseek(context),
        text="best_of/n > 1 cannot be used with deepseek",
    ),
    Exclusion(
        param="stop",
        applies=lambda request, _: request.use_beam_search and bool(request.stop),
        text="use_beam_search cannot be used together with stop",
    ),
    Exclusion(
        param="stop_token_ids",
        applies=lambda request, _: request.use_beam_search and bool(request.stop_token_ids),
        text="use_beam_search cannot be used together with stop_token_ids",
    ),
    Exclusion(
        param="response_format",
        applies=lambda request, _: request.use_beam_search and _is_structured(request),
        text="use_beam_search cannot be used together with response_format",
    ),
    Exclusion(
        param="stop",
        applies=lambda request, _: _may_call(request) and bool(request.stop),
        text="tools cannot be used together with stop",
    ),
    Exclusion(
        param="stop_token_ids",
        applies=lambda request, _: _may_call(request) and bool(request.stop_token_ids),
        text="tools cannot be used together with stop_token_ids",
    ),
    Exclusion(
        param="use_beam_search",
        applies=lambda request, _: _may_call(request) and request.use_beam_search,
        text="tools cannot be used together with use_beam_search",
    ),
    Exclusion(
        param="best_of",
        applies=lambda request, _: _may_call(request) and (request.best_of or 1) > 1,
        text="tools cannot be used together with best_of",
    ),
    Exclusion(
        param="n",
        applies=lambda request, _: _may_call(request) and (request.n or 1) > 1,
        text="tools cannot be used together with n",
    ),
    Exclusion(
        param="logprobs",
        applies=lambda request, _: _may_call(request) and request.logprobs is not None,
        text="tools cannot be used together with logprobs and top_logprobs",
    ),
    Exclusion(
        param="response_format",
        applies=lambda request, _: _may_call(request) and _is_structured(request),
        text="tools cannot be used together with response_format",
    ),
)
