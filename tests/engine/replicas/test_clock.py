import pytest

from mindserve.engine.replicas.clock import WINDOW_S, Clock


def test_the_quickest_item_tells_the_difference_best() -> None:
    clock = Clock()
    for sent_s, delay_s in ((10.0, 0.005), (11.0, 0.001), (12.0, 0.020)):
        clock.observe(sent_s=sent_s, received_s=sent_s + 1000.0 + delay_s)
    assert clock.offset_s == pytest.approx(1000.001)


def test_a_translated_time_is_never_later_than_its_arrival() -> None:
    clock = Clock()
    for sent_s, delay_s in ((10.0, 0.001), (11.0, 0.3), (12.0, 0.0005)):
        received_s = sent_s - 500.0 + delay_s
        clock.observe(sent_s=sent_s, received_s=received_s)
        assert sent_s + clock.offset_s <= received_s


def test_it_follows_clocks_that_drift_apart() -> None:
    clock = Clock()
    drift = 50e-6
    for second in range(3600):
        sent_s = float(second)
        clock.observe(sent_s=sent_s, received_s=sent_s * (1 + drift) + 0.001)
    true_s = 3599 * drift
    assert clock.offset_s == pytest.approx(true_s + 0.001, abs=2 * WINDOW_S * drift + 1e-6)
    assert abs(clock.offset_s - (true_s + 0.001)) > 0
