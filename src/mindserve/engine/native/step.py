"""One forward pass of the model: what goes in and what comes out. The scheduler's plan becomes a StepBatch;
`runner.Runner` is the only one that turns it into tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mindserve.engine.base import MediaInput

BLOCK_SIZE = 32
"""Tokens per KV block; what OpenVINO's paged attention uses on CPUs."""
CANDIDATES = 64
"""Best logits per row that the graph hands out beside the full rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """T tokens of S sequences, of which R rows are sampled. Sequences lie one after the other."""

    token_ids: NDArray[np.int64]
    """[T]"""
    positions: NDArray[np.int64]
    """[T] index of each token in its own sequence; [3, T] where media have places in time, height and width."""
    past_lens: NDArray[np.int32]
    """[S] tokens of each sequence that the KV blocks hold already."""
    subsequence_begins: NDArray[np.int32]
    """[S + 1] offsets into token_ids."""
    block_indices: NDArray[np.int32]
    """[sum of blocks] the sequences' block tables, one after the other."""
    block_indices_begins: NDArray[np.int32]
    """[S + 1] offsets into block_indices."""
    max_context_len: int
    """Longest past + new of any sequence."""
    sample_rows: NDArray[np.int64]
    """[R] indices into token_ids whose logits are wanted."""
    inverse_temperature: NDArray[np.float32]
    """[R] scales the logits before the log-sum-exp that the graph computes (1 for greedy rows)."""
    is_reproducible: bool = False
    """Whether some sequence must get the same numbers here as in any other step (its request has a seed)."""
    adapters: tuple[str | None, ...] = ()
    """[S] key of each sequence's adapter; (): none of them has one."""
    embeddings: NDArray[np.float32] | None = None
    """[T, hidden size] what the towers made of media; None: no token of the step stands for any."""
    is_embedded: NDArray[np.bool_] | None = None
    """[T] which rows of `embeddings` count."""


class StepOutput(Protocol):
    """The result of a step. All views are valid until the next step only, and each is computed when first asked for."""

    @property
    def best_ids(self) -> NDArray[np.int32]:
        """[R] id of each row's best logit: much cheaper than the candidates where nothing else is needed."""
        ...

    @property
    def candidate_ids(self) -> NDArray[np.int32]:
        """[R, CANDIDATES] ids of the best tokens, best first (ties: lowest id first is not promised)."""
        ...

    @property
    def candidate_logits(self) -> NDArray[np.float32]:
        """[R, CANDIDATES] their raw logits, untouched by the temperature."""
        ...

    @property
    def log_sum_exp(self) -> NDArray[np.float32]:
        """[R] log of the sum over the vocabulary of exp(logit * inverse_temperature)."""
        ...

    @property
    def logits(self) -> NDArray[np.float32]:
        """[R, vocab_size] full rows, without a copy. Read-only."""
        ...


class Towers(Protocol):
    """What reads the media of prompts. Used by one thread, which need not be the runner's."""

    def encode(self, media: MediaInput) -> NDArray[np.float32]:
        """[media.length, hidden size] embeddings. Raises EngineFailure."""
        ...

    def positions(self, length: int, media: Sequence[MediaInput]) -> NDArray[np.int64] | None:
        """[3, length] rotary positions of a prompt; None: its tokens just count."""
        ...

    def interrupt(self) -> None:
        """Let `encode` fail now, if it runs. May be called from any thread."""
        ...


class Adapters(Protocol):
    """The LoRA adapters beside a model. Loading takes place beside the runner's thread, one change at a time; what
    puts a change to use is called on it, between steps and in the order of the changes."""

    def add(self, key: str, path: Path) -> Callable[[], None]:
        """Read an adapter that sequences will name by `key`. Raises ModelLoadError."""
        ...

    def remove(self, key: str) -> Callable[[], None]:
        """Forget one that no step needs any more."""
        ...


class Runner(Protocol):
    """A loaded model with its KV blocks."""

    towers: Towers | None
    """None: the model takes text only."""
    adapters: Adapters | None
    """None: the model takes none."""

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        ...

    @property
    def block_count(self) -> int:
        """KV blocks that exist."""
        ...

    def step(self, batch: StepBatch) -> StepOutput:
        """Run the model once. Raises EngineFailure."""
        ...

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy block contents (source, target) before the next step: copy-on-write of shared partial blocks."""
        ...

    def close(self) -> None:
        """Free the model."""
        ...
