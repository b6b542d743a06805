"""Which tokens the penalties remember, however many there are."""

import numpy as np

from mindserve.engine.base import SamplingParams
from mindserve.engine.native.sampling.state import Penalties


def test_the_memory_grows_with_the_tokens() -> None:
    penalties = Penalties(SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0), range(255))
    for token_id in (*range(255, 600), 599):
        penalties.count(token_id)
    assert penalties.ids.tolist() == list(range(600))
    changed = penalties.apply(np.full(600, 4.0))
    assert changed[:255].tolist() == [2.0] * 255
    assert changed[255:599].tolist() == [1.0] * 344
    assert changed[599] == 0.0
