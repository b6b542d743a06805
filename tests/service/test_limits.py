from pathlib import Path

import pytest

from mindserve.engine.base import ModelInfo
from mindserve.errors import InvalidRequest, PromptTooLong
from mindserve.service.limits import PromptLimits
from mindserve.settings.values import ModelSettings, Truncation


def _limits(
    *, truncation: Truncation = Truncation.REJECT, positions: int = 4096, max_seq: int = 20, max_input: int = 10
) -> PromptLimits:
    model = ModelSettings(name="m", path=Path("m"), max_seq_len=max_seq, max_input_len=max_input, truncation=truncation)
    return PromptLimits.of(model, ModelInfo(model_type="t", vocab_size=100, max_context_len=positions))


def test_a_prompt_that_fits_is_untouched() -> None:
    assert _limits().fit(list(range(10)), has_media=False) == list(range(10))


def test_too_long_names_the_smaller_of_input_length_and_sequence_length_less_one() -> None:
    expected = (
        "Failed to enqueue inferRequest. This model's maximum input ids length cannot be greater than "
        "{},the input ids length is {}"
    )
    with pytest.raises(PromptTooLong) as error:
        _limits().fit(list(range(11)), has_media=False)
    assert error.value.message == expected.format("10", 11)
    with pytest.raises(PromptTooLong) as error:
        _limits(max_seq=8).fit(list(range(9)), has_media=False)
    assert error.value.message == expected.format("7", 9)


def test_beyond_the_models_positions_that_limit_is_named() -> None:
    with pytest.raises(PromptTooLong, match="greater than maxPositionEmbeddings 12,the input ids length is 13"):
        _limits(positions=12).fit(list(range(13)), has_media=False)


def test_a_context_that_is_only_the_configured_length_is_not_blamed_on_the_model() -> None:
    with pytest.raises(PromptTooLong, match="greater than 10,the input ids length is 30"):
        _limits(positions=20).fit(list(range(30)), has_media=False)


def test_truncation_keeps_the_head_or_the_tail() -> None:
    prompt = list(range(15))
    assert _limits(truncation=Truncation.CUT_RIGHT).fit(prompt, has_media=False) == list(range(10))
    assert _limits(truncation=Truncation.CUT_LEFT).fit(prompt, has_media=False) == list(range(5, 15))
    assert _limits(truncation=Truncation.CUT_LEFT, positions=4).fit(prompt, has_media=False) == [11, 12, 13, 14]


def test_media_prompts_are_never_cut() -> None:
    with pytest.raises(PromptTooLong):
        _limits(truncation=Truncation.CUT_LEFT).fit(list(range(11)), has_media=True)


def test_empty_and_enormous_prompts_are_the_requests_fault() -> None:
    with pytest.raises(InvalidRequest, match=r"must be in \(0, 1048576\], but got 0\."):
        _limits().fit([], has_media=False)
    with pytest.raises(InvalidRequest, match=r"but got 1048577\."):
        _limits(truncation=Truncation.CUT_LEFT).fit([1] * 1048577, has_media=False)


def test_room_ends_at_the_sequence_length_and_at_the_models_positions() -> None:
    assert _limits().room(10) == 10
    assert _limits(positions=12).room(10) == 2
    assert _limits(positions=10).room(10) == 1
