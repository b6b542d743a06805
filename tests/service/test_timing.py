from mindserve.engine.base import StepInfo
from mindserve.service.timing import StepLog


def _step(time_s: float, *, batch: int = 1, wait: int = 0) -> StepInfo:
    return StepInfo(batch_size=batch, queue_wait_us=wait, time_s=time_s)


def test_one_entry_per_token_and_one_gap_less() -> None:
    log = StepLog(10.0)
    log.record(_step(10.2, batch=1, wait=5149), longest=1)
    log.record(_step(10.256, batch=3, wait=60), longest=2)
    log.record(_step(10.284, batch=2, wait=39), longest=3)
    assert log.prefill_ms == 200
    assert log.decode_ms == [56, 28]
    assert log.batch_sizes == [1, 3, 2]
    assert log.queue_waits_us == [5149, 60, 39]


def test_several_tokens_in_a_step_share_its_gap_and_only_the_first_waited() -> None:
    log = StepLog(0.0)
    log.record(_step(0.1, wait=50), longest=1)
    log.record(_step(0.16, batch=4, wait=70), longest=4)
    assert log.decode_ms == [20, 20, 20]
    assert log.batch_sizes == [1, 4, 4, 4]
    assert log.queue_waits_us == [50, 70, 0, 0]


def test_all_tokens_of_a_first_step_come_at_the_time_of_the_first() -> None:
    log = StepLog(0.0)
    log.record(_step(0.5, batch=2, wait=9), longest=3)
    assert (log.prefill_ms, log.decode_ms) == (500, [0, 0])
    assert (log.batch_sizes, log.queue_waits_us) == ([2, 2, 2], [9, 0, 0])


def test_a_step_that_does_not_lengthen_the_longest_sequence_adds_its_time_to_the_next_entry() -> None:
    log = StepLog(0.0)
    log.record(_step(0.1), longest=4)
    log.record(_step(0.2, batch=7), longest=4)
    assert log.batch_sizes == [1, 1, 1, 1]
    log.record(_step(0.3, batch=5), longest=5)
    assert log.batch_sizes == [1, 1, 1, 1, 5]
    assert log.decode_ms == [0, 0, 0, 200]


def test_a_clock_that_stands_still_gives_no_negative_gap() -> None:
    log = StepLog(1.0)
    log.record(_step(0.9), longest=1)
    assert log.prefill_ms == 0
