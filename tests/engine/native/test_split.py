"""A split step holds the same sequences, rows and blocks as the whole."""

import numpy as np

from mindserve.engine.native.split import MIN_PROMPT_TOKENS, split
from mindserve.engine.native.step import StepBatch

LENGTHS = [1, MIN_PROMPT_TOKENS + 8, 1, MIN_PROMPT_TOKENS, 3]
PAST = [70, 0, 5, 32, 31]
BLOCKS = [3, 2, 1, 2, 2]
SAMPLED = [0, 2, 3, 4]


def whole() -> StepBatch:
    begins = np.cumsum([0, *LENGTHS]).astype(np.int32)
    total = int(begins[-1])
    return StepBatch(
        token_ids=np.arange(100, 100 + total),
        positions=np.concatenate([np.arange(past, past + new) for past, new in zip(PAST, LENGTHS, strict=True)]),
        past_lens=np.array(PAST, np.int32),
        subsequence_begins=begins,
        block_indices=np.arange(sum(BLOCKS), dtype=np.int32) * 7,
        block_indices_begins=np.cumsum([0, *BLOCKS]).astype(np.int32),
        max_context_len=71,
        sample_rows=np.array([begins[each + 1] - 1 for each in SAMPLED], np.int64),
        inverse_temperature=np.arange(len(SAMPLED), dtype=np.float32),
    )


def test_prompts_go_alone_and_after_the_decodes() -> None:
    parts = list(split(whole()))
    assert [len(part.batch.past_lens) for part in parts] == [3, 1, 1]
    assert [part.is_prompt for part in parts] == [False, True, True]


def test_every_sequence_keeps_its_tokens_blocks_and_context() -> None:
    batch = whole()
    seen: dict[int, tuple[list[int], list[int], int]] = {}
    for part in split(batch):
        for index, past in enumerate(part.batch.past_lens):
            tokens = slice(*part.batch.subsequence_begins[index : index + 2])
            blocks = slice(*part.batch.block_indices_begins[index : index + 2])
            seen[int(past)] = (
                part.batch.token_ids[tokens].tolist(),
                part.batch.block_indices[blocks].tolist(),
                int(part.batch.positions[tokens][0]),
            )
        lengths = np.diff(part.batch.subsequence_begins)
        assert part.batch.max_context_len == max(part.batch.past_lens + lengths)
    for index, past in enumerate(PAST):
        tokens = slice(*batch.subsequence_begins[index : index + 2])
        blocks = slice(*batch.block_indices_begins[index : index + 2])
        assert seen[past] == (batch.token_ids[tokens].tolist(), batch.block_indices[blocks].tolist(), past)


def test_sampled_rows_are_found_again() -> None:
    batch = whole()
    found = np.zeros(len(SAMPLED), np.int64)
    for part in split(batch):
        found[part.rows] = part.batch.token_ids[part.batch.sample_rows]
        assert part.batch.inverse_temperature.tolist() == batch.inverse_temperature[part.rows].tolist()
    assert found.tolist() == batch.token_ids[batch.sample_rows].tolist()
