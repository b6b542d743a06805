from typing import Any

import pytest

from mindserve.contract.request import ChatRequest
from mindserve.engine.base import ModelInfo, SamplingParams
from mindserve.service.sampling import sampling_params

INFO = ModelInfo(model_type="qwen2", vocab_size=5000, max_context_len=4096)


def _params(info: ModelInfo = INFO, **fields: Any) -> SamplingParams:
    return sampling_params(ChatRequest(model="m", messages=(), **fields), info, max_tokens=100)


def test_unset_fields_sample_at_temperature_one_from_a_thousand_candidates() -> None:
    assert _params() == SamplingParams(temperature=1.0, top_k=1000, max_tokens=100)


def test_given_fields_arrive_unchanged() -> None:
    params = _params(
        temperature=0.0,
        top_p=0.5,
        top_k=7,
        seed=2**64 - 1,
        repetition_penalty=1.1,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        max_tokens=5,
        ignore_eos=True,
        logprobs=3,
        stop_token_ids=(2, 13),
    )
    assert params == SamplingParams(
        temperature=0.0,
        top_p=0.5,
        top_k=7,
        seed=2**64 - 1,
        repetition_penalty=1.1,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        max_tokens=5,
        ignore_eos=True,
        logprobs=3,
        stop_token_ids=frozenset({2, 13}),
    )


@pytest.mark.parametrize(
    ("requested", "model_default", "expected"),
    [(None, None, 1000), (None, 20, 20), (None, 0, 0), (-1, 20, 0), (0, 20, 0), (1, 20, 1), (6000, None, 5000)],
)
def test_top_k(requested: int | None, model_default: int | None, expected: int) -> None:
    info = ModelInfo(model_type="t", vocab_size=5000, max_context_len=1, default_top_k=model_default)
    assert _params(info, top_k=requested).top_k == expected


def test_the_default_top_k_does_not_exceed_a_small_vocabulary() -> None:
    assert _params(ModelInfo(model_type="t", vocab_size=300, max_context_len=1)).top_k == 300


def test_a_tiny_temperature_still_samples() -> None:
    assert _params(temperature=1e-9).temperature == 1e-9


def test_max_tokens_is_capped() -> None:
    assert _params(max_tokens=101).max_tokens == 100
    assert _params(max_tokens=99).max_tokens == 99


def test_beam_search_ignores_sampling_but_not_penalties() -> None:
    params = _params(use_beam_search=True, temperature=0.3, top_k=5, top_p=0.1, seed=1, repetition_penalty=1.2)
    assert params == SamplingParams(repetition_penalty=1.2, max_tokens=100)


def test_stop_tokens_outside_the_vocabulary_cannot_come_and_are_left_out() -> None:
    assert _params(stop_token_ids=(-1, 4999, 5000)).stop_token_ids == frozenset({4999})
