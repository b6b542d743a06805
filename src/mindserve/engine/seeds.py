"""Random numbers of a request's sequences, derived from its seed alone."""

import secrets

import numpy as np

from mindserve.engine.base import SamplingParams


def generator_of(sampling: SamplingParams, index: int) -> np.random.Generator:
    """Counter-based, keyed by the seed and the sequence's index: independent of whatever else is in the batch."""
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
    return np.random.Generator(np.random.Philox(key=np.array([seed, index], np.uint64)))


def seed_of(sampling: SamplingParams, index: int) -> int | None:
    """The seed of one sequence, in [0, 2^64-1], for engines with generators of their own; None: fresh entropy.

    The first sequence has the request's own seed.
    """
    if sampling.seed is None or index == 0:
        return sampling.seed
    return int(generator_of(sampling, index).integers(1 << 64, dtype=np.uint64))
