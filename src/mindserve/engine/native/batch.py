"""From a plan to the arrays of one forward pass."""

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.native.blocks import blocks_for
from mindserve.engine.native.scheduler import Plan, Scheduled
from mindserve.engine.native.step import StepBatch


def build_batch(plan: Plan) -> StepBatch:
    """Arrays for the plan's entries, in their order. An entry that reaches its last token has one sampled row there,
    and one for each token of its draft."""
    entries = plan.entries
    past = [entry.sequence.computed for entry in entries]
    counts = [entry.row_count for entry in entries]
    begins = _offsets(counts)
    embeddings, is_embedded = _embeddings(entries, begins)
    tables = [e.sequence.blocks[: blocks_for(e.sequence.computed + e.row_count)] for e in entries]
    return StepBatch(
        token_ids=np.fromiter(chain.from_iterable(map(_tokens, entries)), np.int64, int(begins[-1])),
        positions=_positions(entries, begins),
        past_lens=np.array(past, np.int32),
        subsequence_begins=begins,
        block_indices=np.array(list(chain.from_iterable(tables)), np.int32),
        block_indices_begins=_offsets([len(table) for table in tables]),
        max_context_len=max(p + c for p, c in zip(past, counts, strict=True)),
        sample_rows=_sample_rows(entries, begins),
        inverse_temperature=np.array(
            [e.sequence.sampler.inverse_temperature for e in entries if e.is_sampled for _ in range(1 + len(e.draft))],
            np.float32,
        ),
        is_reproducible=any(e.sequence.active.request.sampling.seed is not None for e in entries),
        adapters=_adapters(entries),
        embeddings=embeddings,
        is_embedded=is_embedded,
    )


def _tokens(entry: Scheduled) -> list[int]:
    begin = entry.sequence.computed
    return [*entry.sequence.tokens[begin : begin + entry.count], *entry.draft]


def _sample_rows(entries: list[Scheduled], begins: NDArray[np.int32]) -> NDArray[np.int64]:
    ends = zip(entries, begins[1:].tolist(), strict=True)
    return np.array([end - 1 - i for e, end in ends if e.is_sampled for i in range(len(e.draft), -1, -1)], np.int64)


def _adapters(entries: list[Scheduled]) -> tuple[str | None, ...]:
    keys = tuple(entry.sequence.active.request.adapter for entry in entries)
    return () if all(key is None for key in keys) else keys


def _offsets(lengths: list[int]) -> NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _positions(entries: list[Scheduled], begins: NDArray[np.int32]) -> NDArray[np.int64]:
    counts = [entry.row_count for entry in entries]
    shift = np.array([entry.sequence.computed for entry in entries], np.int64) - begins[:-1]
    positions = np.arange(begins[-1], dtype=np.int64) + np.repeat(shift, counts)
    with_media = [i for i, entry in enumerate(entries) if entry.sequence.active.media is not None]
    if not with_media:
        return positions
    positions = np.tile(positions, (3, 1))
    for i in with_media:
        media = entries[i].sequence.active.media
        assert media is not None
        positions[:, begins[i] : begins[i + 1]] = media.positions(entries[i].sequence.computed, counts[i])
    return positions


def _embeddings(
    entries: list[Scheduled], begins: NDArray[np.int32]
) -> tuple[NDArray[np.float32] | None, NDArray[np.bool_] | None]:
    """None where no token of the step stands for media."""
    embeddings = is_embedded = None
    for entry, begin in zip(entries, begins.tolist(), strict=False):
        media, past = entry.sequence.active.media, entry.sequence.computed
        for offset, rows in () if media is None else media.embeddings(past, entry.count):
            if embeddings is None or is_embedded is None:
                embeddings = np.zeros((int(begins[-1]), rows.shape[1]), np.float32)
                is_embedded = np.zeros(int(begins[-1]), np.bool_)
            place = slice(begin + offset, begin + offset + len(rows))
            embeddings[place], is_embedded[place] = rows, True
    return embeddings, is_embedded
