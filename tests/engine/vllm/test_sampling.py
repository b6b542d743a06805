"""From a request to vLLM's sampling fields."""

import pickle

import pytest

from mindserve.engine.base import GenerateRequest, SamplingParams
from mindserve.engine.seeds import seed_of
from mindserve.engine.vllm.sampling import EXTRA, Frame, beam_fields, sequence_fields
from mindserve.errors import InvalidRequest


class Mask:
    """Picklable."""

    def __init__(self, number: int) -> None:
        self.number = number


def fields_of(*, n: int = 1, index: int = 0, mask: object = None, max_new: int = 9, **sampling: object) -> dict:
    request = GenerateRequest(request_id="r", prompt_token_ids=[1], sampling=SamplingParams(**sampling), n=n, mask=mask)
    frame = Frame.of(request, max_new_tokens=max_new, eos_token_ids=frozenset({5, 3}))
    return sequence_fields(request, index, frame)


def test_plain_sampling() -> None:
    fields = fields_of(temperature=0.7, top_k=12, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.3, seed=6)
    assert fields == {
        "stop_token_ids": [3, 5],
        "ignore_eos": True,
        "max_tokens": 9,
        "temperature": 0.7,
        "top_k": 12,
        "top_p": 0.9,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.0,
        "logprobs": None,
        "seed": 6,
    }


def test_end_tokens_are_all_ours() -> None:
    assert fields_of(stop_token_ids=frozenset({8}))["stop_token_ids"] == [3, 5, 8]
    assert fields_of(stop_token_ids=frozenset({8}), ignore_eos=True)["stop_token_ids"] == [8]


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 1}])
def test_greedy(sampling: dict) -> None:
    fields = fields_of(seed=3, top_p=0.5, **sampling)
    assert fields["temperature"] == 0
    assert not {"top_k", "top_p", "seed"} & set(fields)


@pytest.mark.parametrize(("wanted", "taken"), [(5.0, 2.0), (1e30, 2.0), (0.001, 0.01), (1e-9, 0.01)])
def test_temperatures_beyond_vllms_range_are_finished_by_us(wanted: float, taken: float) -> None:
    fields = fields_of(temperature=wanted)
    assert fields["temperature"] == taken
    assert fields["extra_args"][EXTRA]["heat"] == pytest.approx(max(wanted, 1e-6) / taken)


def test_siblings_have_seeds_of_their_own() -> None:
    params = SamplingParams(seed=2**64 - 1)
    seeds = [seed_of(params, index) for index in range(50)]
    assert seeds[0] == 2**64 - 1
    assert len(set(seeds)) == 50
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert [fields_of(n=3, index=i, seed=2**64 - 1)["seed"] for i in range(3)] == seeds[:3]
    assert fields_of(n=3, index=2)["seed"] is None


def test_several_sequences_are_ranked() -> None:
    assert fields_of(n=2)["logprobs"] == 0
    assert fields_of(n=2, logprobs=4)["logprobs"] == 4
    assert fields_of()["logprobs"] is None


def test_a_mask_travels_as_bytes_with_the_tokens_that_may_end_it() -> None:
    extra = fields_of(mask=Mask(4))["extra_args"][EXTRA]
    assert pickle.loads(extra["mask"]).number == 4
    assert extra["ends"] == [3, 5]


def test_a_mask_that_cannot_travel_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="constraint"):
        fields_of(mask=Mask(lambda: 1))


def test_beams_ask_for_one_token_and_bring_their_penalties() -> None:
    sampling = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.25, presence_penalty=-1.0, temperature=0.4)
    request = GenerateRequest(request_id="r", prompt_token_ids=[1], sampling=sampling, n=3, use_beam_search=True)
    frame = Frame.of(request, max_new_tokens=9, eos_token_ids=frozenset({5}))
    assert beam_fields(request, frame, candidates=4, generated=2) == {
        "stop_token_ids": [5],
        "ignore_eos": True,
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": 4,
        "extra_args": {EXTRA: {"generated": 2, "penalties": [1.5, 0.25, -1.0]}},
    }
