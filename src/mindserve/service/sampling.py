"""From the request's fields to the engine's sampling parameters."""

from mindserve.contract.request import ChatRequest
from mindserve.engine.base import ModelInfo, SamplingParams

DEFAULT_TOP_K = 1000
"""Where neither the request nor the model's files set top_k (contract: top_k)."""


def sampling_params(request: ChatRequest, info: ModelInfo, *, max_tokens: int) -> SamplingParams:
    """The engine's parameters; `max_tokens` is the smallest of the configured caps and the room in the context.

    Beam search does not sample: temperature, top_k, top_p and seed have no effect there, penalties have.
    """
    is_sampling = not request.use_beam_search
    return SamplingParams(
        temperature=_or(request.temperature, 1.0) if is_sampling else 1.0,
        top_k=_top_k(request.top_k, info) if is_sampling else 0,
        top_p=_or(request.top_p, 1.0) if is_sampling else 1.0,
        seed=request.seed if is_sampling else None,
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        max_tokens=max_tokens if request.max_tokens is None else min(request.max_tokens, max_tokens),
        stop_token_ids=frozenset(token for token in request.stop_token_ids if 0 <= token < info.vocab_size),
        ignore_eos=request.ignore_eos,
        logprobs=request.logprobs,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _top_k(requested: int | None, info: ModelInfo) -> int:
    """0 and below mean off; more candidates than tokens mean all tokens."""
    top_k = requested
    if top_k is None:
        top_k = DEFAULT_TOP_K if info.default_top_k is None else info.default_top_k
    return min(max(top_k, 0), info.vocab_size)
