"""The scheduler by itself: plans, without running anything."""

from mindserve.engine.base import GenerateRequest
from mindserve.engine.native.blocks import BlockPool
from mindserve.engine.native.scheduler import Plan, Scheduler
from mindserve.engine.native.sequence import ActiveRequest, Sequence, Status
from mindserve.settings.values import SchedulerSettings


def make(blocks: int = 100, **settings: int) -> Scheduler:
    return Scheduler(SchedulerSettings(**settings), BlockPool(blocks))


def active(number: int, prompt_len: int, *, n: int = 1) -> ActiveRequest:
    prompt = [number * 1000 + i for i in range(prompt_len)]
    request = GenerateRequest(request_id="r", prompt_token_ids=prompt, n=n)
    return ActiveRequest(request, number=number, arrival_s=0, max_new_tokens=100, eos_token_ids=frozenset())


def add(scheduler: Scheduler, *lengths: int) -> list[Sequence]:
    sequences = [active(number, length).sequences[0] for number, length in enumerate(lengths)]
    for sequence in sequences:
        scheduler.add(sequence)
    return sequences


def step(scheduler: Scheduler) -> list[tuple[int, int]]:
    """Run a plan; every sequence that reached its last token gets another. Returns (request number, count)."""
    plan = scheduler.schedule(now_s=1.0)
    counts = [(entry.sequence.active.number, entry.count) for entry in plan.entries]
    commit(scheduler, plan)
    return counts


def commit(scheduler: Scheduler, plan: Plan) -> None:
    ready = [entry.sequence for entry in plan.entries if entry.is_sampled]
    scheduler.commit(plan)
    for sequence in ready:
        sequence.append(0)


def test_decodes_come_first_and_prompts_fill_the_rest() -> None:
    scheduler = make(step_token_budget=10)
    add(scheduler, 3, 25)
    assert step(scheduler) == [(0, 3), (1, 7)]
    assert step(scheduler) == [(0, 1), (1, 9)]
    assert step(scheduler) == [(0, 1), (1, 9)]
    assert step(scheduler) == [(0, 1), (1, 1)]


def test_limits_of_prefill() -> None:
    scheduler = make(step_token_budget=100, max_prefill_tokens=8, max_prefill_batch_size=1)
    add(scheduler, 5, 5, 5)
    assert [step(scheduler) for _ in range(3)] == [[(0, 5)], [(0, 1), (1, 5)], [(0, 1), (1, 1), (2, 5)]]


def test_batch_size_limits_admission() -> None:
    scheduler = make(max_batch_size=2)
    first, _, third = add(scheduler, 4, 4, 4)
    assert step(scheduler) == [(0, 4), (1, 4)]
    scheduler.finish(first)
    assert step(scheduler) == [(1, 1), (2, 4)]
    assert third.status is Status.RUNNING


def test_admission_leaves_a_block_for_each_running_sequence() -> None:
    scheduler = make(blocks=5)
    add(scheduler, 90, 60)
    assert step(scheduler) == [(0, 90)]  # 3 blocks; 2 are left, of which the first request may soon need one
    assert step(scheduler) == [(0, 1)]


def test_youngest_is_preempted_and_waits_before_newer_ones() -> None:
    scheduler = make(blocks=3)
    old, young = add(scheduler, 32, 20)
    assert step(scheduler) == [(0, 32), (1, 20)]
    assert step(scheduler) == [(0, 1), (1, 1)]
    for _ in range(31):
        step(scheduler)
    newest = active(7, 5).sequences[0]
    scheduler.add(newest)
    assert step(scheduler) == [(0, 1)]
    assert (old.status, young.status, scheduler.preemptions) == (Status.RUNNING, Status.WAITING, 1)
    assert young.blocks == []
    assert scheduler.waiting == [young, newest]
    scheduler.finish(old)
    assert [number for number, _ in step(scheduler)] == [1]
    assert young.computed == len(young.tokens) - 1


def test_a_shared_last_block_is_copied_by_the_first_who_writes() -> None:
    scheduler = make()
    request = active(0, 40, n=2)
    parent, child = request.sequences
    scheduler.add(parent)
    step(scheduler)
    scheduler.fork(parent, child)
    child.tokens = list(parent.tokens)
    shared = list(parent.blocks)
    plan = scheduler.schedule(now_s=2.0)
    assert plan.copies == [(shared[1], parent.blocks[1])]
    assert parent.blocks[1] != shared[1]
    assert child.blocks == shared
    assert parent.blocks[0] == shared[0]
    assert not scheduler.pool.is_shared(shared[1])


def test_being_computed_prefix_is_waited_for() -> None:
    scheduler = make(step_token_budget=40)
    first, second = active(0, 100).sequences[0], active(0, 100).sequences[0]
    second.active.number = 1
    for sequence in (first, second):
        scheduler.add(sequence)
    assert [step(scheduler) for _ in range(2)] == [[(0, 40)], [(0, 40)]]
    assert step(scheduler) == [(0, 20)]
    assert step(scheduler) == [(0, 1), (1, 4)]
    assert second.active.cached_tokens == 96


def test_scheduling_time_is_kept_until_the_result() -> None:
    scheduler = make(step_token_budget=4)
    (sequence,) = add(scheduler, 8)
    step(scheduler)
    scheduler.schedule(now_s=9.0)
    assert sequence.active.end_wait(10.0) == 1.0
    assert sequence.active.scheduled_at_s is None
