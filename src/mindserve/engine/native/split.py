"""Cuts a step into the part that decodes and one part per prompt chunk, for models that are compiled twice.

Each chunk goes alone because the prompt kernels' results depend on how many tokens they get at once: so a prompt gives
the same numbers whatever else is in the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.step import StepBatch

MIN_PROMPT_TOKENS = 32
"""Fewer new tokens of a sequence go with the decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of a step's sequences, as a step of its own."""

    batch: StepBatch
    rows: NDArray[np.intp]
    """Which of the whole step's sampled rows are this part's, in its order."""
    is_prompt: bool


def split(batch: StepBatch) -> Iterator[Part]:
    """Parts that together are the step, prompts last."""
    lengths = np.diff(batch.subsequence_begins)
    is_prompt = lengths >= MIN_PROMPT_TOKENS
    short = np.flatnonzero(~is_prompt)
    if len(short):
        yield _part(batch, short, is_prompt=False)
    for index in np.flatnonzero(is_prompt):
        yield _part(batch, np.array([index]), is_prompt=True)


def _part(batch: StepBatch, sequences: NDArray[np.intp], *, is_prompt: bool) -> Part:
    tokens, token_begins = _slices(batch.subsequence_begins, sequences)
    blocks, block_begins = _slices(batch.block_indices_begins, sequences)
    rows = np.flatnonzero(np.isin(batch.sample_rows, tokens))
    lengths = np.diff(token_begins)
    past_lens = batch.past_lens[sequences]
    part = StepBatch(
        token_ids=batch.token_ids[tokens],
        positions=batch.positions[tokens],
        past_lens=past_lens,
        subsequence_begins=token_begins,
        block_indices=batch.block_indices[blocks],
        block_indices_begins=block_begins,
        max_context_len=int((past_lens + lengths).max()),
        sample_rows=np.searchsorted(tokens, batch.sample_rows[rows]).astype(np.int64),
        inverse_temperature=batch.inverse_temperature[rows],
    )
    return Part(batch=part, rows=rows, is_prompt=is_prompt)


def _slices(begins: NDArray[np.int32], sequences: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
    """Indices of the sequences' elements, ascending, and where each begins among them."""
    pieces = [np.arange(int(begins[each]), int(begins[each + 1])) for each in sequences]
    lengths = np.array([0, *map(len, pieces)], np.int32)
    return np.concatenate(pieces), np.cumsum(lengths, dtype=np.int32)
