"""From an engine request to the fields of vLLM's SamplingParams, and to what our logits processors are told."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mindserve.engine.base import GenerateRequest, SamplingParams
from mindserve.engine.seeds import seed_of
from mindserve.errors import InvalidRequest

EXTRA: Final = "mindserve"
"""Our entry in `extra_args`; what is in it survives msgpack."""

_COLDEST, _HOTTEST = 0.01, 2.0
"""Temperatures that vLLM takes as they are. `Heat` does what is missing."""
_MIN_TEMPERATURE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What holds for all sequences of a request."""

    max_new_tokens: int
    end_token_ids: frozenset[int]
    mask: bytes | None = None
    """Pickled."""

    @classmethod
    def of(cls, request: GenerateRequest, *, max_new_tokens: int, eos_token_ids: frozenset[int]) -> "Frame":
        """Raises InvalidRequest."""
        sampling = request.sampling
        ends = sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids | eos_token_ids
        return cls(max_new_tokens=max_new_tokens, end_token_ids=ends, mask=_pickled(request))


def sequence_fields(request: GenerateRequest, index: int, frame: Frame) -> dict[str, object]:
    """For one of the request's sequences."""
    sampling = request.sampling
    fields = _common(frame) | {
        "max_tokens": frame.max_new_tokens,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logprobs": sampling.logprobs,
    }
    if sampling.logprobs is None and request.n > 1:
        fields["logprobs"] = 0  # sequences are ranked by their cumulative log-probability
    extra = _extra(frame)
    if sampling.is_greedy:
        fields["temperature"] = 0.0
    else:
        wanted = max(sampling.temperature, _MIN_TEMPERATURE)
        taken = min(max(wanted, _COLDEST), _HOTTEST)
        fields |= {"temperature": taken, "top_k": max(sampling.top_k, 0), "top_p": sampling.top_p}
        fields["seed"] = seed_of(sampling, index)
        if taken != wanted:
            extra["heat"] = wanted / taken
    return _with_extra(fields, extra)


def beam_fields(request: GenerateRequest, frame: Frame, *, candidates: int, generated: int) -> dict[str, object]:
    """For the one token after a beam, of whose tokens the last `generated` are no prompt."""
    fields = _common(frame) | {"max_tokens": 1, "temperature": 0.0, "logprobs": candidates}
    extra = _extra(frame)
    if generated:
        extra["generated"] = generated
    if (penalties := _penalties(request.sampling)) != [1.0, 0.0, 0.0]:
        extra["penalties"] = penalties
    return _with_extra(fields, extra)


def _common(frame: Frame) -> dict[str, object]:
    """Our own end tokens are the only ones: vLLM reads others from the model's files."""
    return {"stop_token_ids": sorted(frame.end_token_ids), "ignore_eos": True}


def _extra(frame: Frame) -> dict[str, object]:
    return {} if frame.mask is None else {"mask": frame.mask, "ends": sorted(frame.end_token_ids)}


def _with_extra(fields: dict[str, object], extra: Mapping[str, object]) -> dict[str, object]:
    return fields | {"extra_args": {EXTRA: extra}} if extra else fields


def _penalties(sampling: SamplingParams) -> list[float]:
    """In beam search generated tokens come as a prompt, of which vLLM counts none."""
    return [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty]


def _pickled(request: GenerateRequest) -> bytes | None:
    if request.mask is None:
        return None
    try:
        return pickle.dumps(request.mask)
    except Exception as error:  # a mask is foreign code
        raise InvalidRequest(f"The output's constraint cannot be handed to vLLM: {error}") from error
