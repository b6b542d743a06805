"""The two-stage graphs find what a sort of the whole row finds."""

import numpy as np
import openvino as ov
import pytest

from mindserve.engine.native.head import Head
from mindserve.engine.native.step import CANDIDATES


@pytest.mark.parametrize("vocab_size", [40, 64, 300, 4096, 5001])
@pytest.mark.parametrize("rows", [1, 5])
def test_candidates_are_the_best_of_the_whole_row(vocab_size: int, rows: int) -> None:
    logits = np.random.default_rng(vocab_size).standard_normal((rows, vocab_size)).astype(np.float32) * 5
    scale = np.linspace(0.5, 2, rows, dtype=np.float32)
    ids, values, log_sum = Head(ov.Core(), vocab_size, 1).candidates(ov.Tensor(logits), scale)

    expected = np.sort(logits, axis=1)[:, ::-1][:, :CANDIDATES]
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(np.take_along_axis(logits, ids.astype(np.int64), axis=1), expected)
    exact = np.log(np.exp(logits.astype(np.float64) * scale[:, None]).sum(axis=1))
    np.testing.assert_allclose(log_sum, exact, atol=1e-5)


@pytest.mark.parametrize("vocab_size", [40, 64, 5001])
def test_best_is_the_largest_logit(vocab_size: int) -> None:
    logits = np.random.default_rng(1).standard_normal((7, vocab_size)).astype(np.float32)
    np.testing.assert_array_equal(Head(ov.Core(), vocab_size, 1).best(ov.Tensor(logits)), logits.argmax(axis=1))


def test_log_sum_exp_of_huge_logits_is_finite() -> None:
    logits = np.full((1, 128), 1e4, np.float32)
    _, _, log_sum = Head(ov.Core(), 128, 1).candidates(ov.Tensor(logits), np.ones(1, np.float32))
    np.testing.assert_allclose(log_sum, 1e4 + np.log(128), rtol=1e-6)
