"""A thousand random lives of the scheduler by itself: tiny pools, arrivals, siblings, drafts, aborts.

At every step: limits hold, every block has as many users as it counts, nobody writes what others read, and the oldest
that runs moves. Whoever is the oldest of all waits no longer than the others have work. At the end: everybody has
finished and no block is lost.
"""

from collections import Counter
from itertools import chain

import numpy as np
import pytest

from mindserve.engine.base import GenerateRequest, SamplingParams
from mindserve.engine.native.blocks import BlockPool, blocks_for
from mindserve.engine.native.scheduler import Plan, Scheduled, Scheduler
from mindserve.engine.native.sequence import ActiveRequest, Sequence, Status
from mindserve.engine.native.step import BLOCK_SIZE
from mindserve.settings.values import SchedulerSettings

LIVES, LIVES_PER_TEST = 1000, 50
ALPHABET = 3
"""Few tokens: prompts share beginnings, and drafts come true now and then."""


class Life:
    """One scheduler and what happens to it. Sequences get random tokens, as if a model had chosen them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        rng = self.rng
        self.settings = SchedulerSettings(
            max_batch_size=int(rng.integers(1, 9)),
            step_token_budget=int(rng.integers(2, 80)),
            max_prefill_tokens=int(rng.integers(1, 80)),
            max_prefill_batch_size=int(rng.integers(1, 5)),
            prefix_cache=bool(rng.random() < 0.8),
            max_ngram_draft=int(rng.choice([0, 6])),
        )
        self.blocks = int(rng.integers(2, 10))
        self.scheduler = Scheduler(self.settings, BlockPool(self.blocks))
        self.requests: list[ActiveRequest] = []
        self.arriving = int(rng.integers(1, 9))
        self.oldest: Sequence | None = None
        self.patience = 0
        """Steps in which the oldest sequence may still wait."""
        self.steps = 0
        self.drafted = 0

    def arrive(self) -> None:
        rng = self.rng
        length = int(rng.integers(1, self.blocks * BLOCK_SIZE))
        prompt = rng.integers(0, ALPHABET, length)
        prompt[: int(rng.integers(0, length + 1))] = 0
        request = GenerateRequest(
            request_id="r",
            prompt_token_ids=prompt.tolist(),
            n=int(rng.choice([1, 1, 1, 2, 5])),
            sampling=SamplingParams(temperature=0),
        )
        active = ActiveRequest(
            request,
            number=len(self.requests),
            arrival_s=0.0,
            max_new_tokens=min(int(rng.integers(1, 50)), self.blocks * BLOCK_SIZE - length),
            eos_token_ids=frozenset(),
            max_draft=self.settings.max_ngram_draft,
        )
        self.requests.append(active)
        self.scheduler.add(active.sequences[0])

    def abort(self) -> None:
        """End any sequence; an unborn sibling takes the place of one that ends before the prompt is computed."""
        alive = [s for active in self.requests for s in active.unfinished]
        if not alive:
            return
        sequence = alive[self.rng.integers(len(alive))]
        heir = next((s for s in sequence.active.sequences if s.status is Status.UNBORN), None)
        if heir is None or sequence.status is Status.UNBORN:
            self.scheduler.finish(sequence)
        else:
            self.scheduler.replace(sequence, heir)

    @property
    def alive(self) -> list[Sequence]:
        return [*self.scheduler.running, *self.scheduler.waiting]

    def live(self) -> None:
        while self.arriving or self.alive:
            if self.arriving and (self.rng.random() < 0.3 or not self.alive):
                self.arriving -= 1
                self.arrive()
            if self.rng.random() < 0.03:
                self.abort()
            self.step()
            self.steps += 1
            assert self.steps < 5000, "it does not come to an end"

    def step(self) -> None:
        # A limit of 0 prompt tokens is only ever set beside decodes.
        limit = (
            int(self.rng.integers(0 if self.scheduler.count_decodes() else 1, 40)) if self.rng.random() < 0.3 else None
        )
        plan = self.scheduler.schedule(now_s=1.0, prompt_tokens=limit)
        self.check_limits(plan, limit)
        self.check_blocks()
        self.check_writes(plan)
        self.check_the_oldest(plan, limit)
        self.scheduler.commit(plan)
        self.check_blocks()
        for entry in plan.entries:
            self.drafted += len(entry.draft)
            self.answer(entry)
        self.check_blocks()

    def answer(self, entry: Scheduled) -> None:
        """Choose the next tokens: of the draft a random part comes true."""
        parent = entry.sequence
        if parent.pending:
            return
        newborn = [s for s in parent.active.sequences if s.status is Status.UNBORN]
        for sibling in newborn:
            self.scheduler.fork(parent, sibling)
        for sequence in (parent, *newborn):
            right = entry.draft[: self.rng.integers(0, len(entry.draft) + 1)]
            tokens = [*right, int(self.rng.integers(0, ALPHABET))]
            reasons = [sequence.append(token) for token in tokens]
            sequence.computed += len(right)
            assert all(reason is None for reason in reasons[:-1]), "a draft beyond the last token"
            if reasons[-1] is not None:
                self.scheduler.finish(sequence)

    def check_limits(self, plan: Plan, limit: int | None) -> None:
        settings = self.settings
        rows = sum(entry.row_count for entry in plan.entries)
        chunks = [entry.count for entry in plan.entries if entry.count > 1]
        assert rows <= settings.step_token_budget
        assert sum(chunks) <= (
            settings.max_prefill_tokens if limit is None else min(settings.max_prefill_tokens, limit)
        )
        assert len(chunks) <= settings.max_prefill_batch_size
        assert len(self.scheduler.running) <= settings.max_batch_size
        assert plan.entries or not self.alive or limit == 0
        for line in (self.scheduler.running, self.scheduler.waiting):
            assert [s.order for s in line] == sorted(s.order for s in line)

    def check_blocks(self) -> None:
        pool = self.scheduler.pool
        users = Counter(chain.from_iterable(sequence.blocks for sequence in self.scheduler.running))
        assert pool.free_count + pool.cached_count + len(users) == pool.block_count
        assert all(pool.is_shared(block) == (count > 1) for block, count in users.items())
        assert not any(s.blocks for active in self.requests for s in active.sequences if s.status is not Status.RUNNING)

    def check_writes(self, plan: Plan) -> None:
        """Every entry has blocks for its tokens, and those that it writes are its own."""
        assert len({id(entry.sequence) for entry in plan.entries}) == len(plan.entries)
        for entry in plan.entries:
            sequence = entry.sequence
            end = sequence.computed + entry.row_count
            assert sequence.status is Status.RUNNING
            assert 0 < entry.count <= sequence.pending
            assert len(sequence.blocks) >= blocks_for(end)
            written = sequence.blocks[sequence.computed // BLOCK_SIZE : blocks_for(end)]
            assert not any(self.scheduler.pool.is_shared(block) for block in written)
        own = set(chain.from_iterable(entry.sequence.blocks for entry in plan.entries))
        assert {target for _, target in plan.copies} <= own

    def check_the_oldest(self, plan: Plan, limit: int | None) -> None:
        """The oldest that runs moves. The oldest of all may wait for what younger ones hold, until they have finished:
        a place in the batch, blocks, or a prefix that is being computed."""
        planned = [entry.sequence for entry in plan.entries]
        running, alive = self.scheduler.running, self.alive
        if limit == 0 or not alive:
            return
        assert not running or running[0] in planned
        oldest = min(alive, key=lambda sequence: sequence.order)
        if oldest is not self.oldest:
            self.oldest = oldest
            self.patience = sum(s.pending + s.active.max_new_tokens - s.generated for s in alive)
        elif oldest not in planned:
            self.patience -= 1
            assert self.patience > 0, "the oldest starves"


@pytest.mark.parametrize("first", range(0, LIVES, LIVES_PER_TEST))
def test_whatever_happens(first: int) -> None:
    lives = [Life(seed) for seed in range(first, first + LIVES_PER_TEST)]
    for life in lives:
        life.live()
        pool = life.scheduler.pool
        assert all(s.status is Status.FINISHED for active in life.requests for s in active.sequences)
        assert pool.free_count + pool.cached_count == pool.block_count
    # The lives are worth the name: blocks ran out, beginnings were found again, drafts were made.
    assert sum(life.scheduler.preemptions for life in lives) > 10
    assert sum(life.scheduler.prefix_hits for life in lives) > 100
    assert sum(life.drafted for life in lives) > 10
