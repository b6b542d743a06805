"""What the next step computes. Pure bookkeeping: no tensors, no clock, no thread.

A sequence has `pending` tokens that are not in its blocks: one while it decodes, many while its prompt (or, after a
preemption, its prompt and output) is computed in chunks. A step takes all decodes, oldest first, and fills what is
left of its token budget with chunks: running sequences', then those of newly admitted ones. Sequences wait and run in
the order of their requests' arrival and the youngest is preempted first, so the oldest always moves and nobody starves.
"""

from bisect import insort
from dataclasses import dataclass, field

from mindserve.engine.native.blocks import BlockPool, blocks_for
from mindserve.engine.native.sequence import Sequence, Status
from mindserve.engine.native.speculate import MAX_ROWS, least_chance
from mindserve.engine.native.step import BLOCK_SIZE
from mindserve.settings.values import SchedulerSettings


@dataclass(frozen=True, slots=True)
class Scheduled:
    """`count` pending tokens of one sequence, and a draft of what may follow them."""

    sequence: Sequence
    count: int
    draft: tuple[int, ...] = ()

    @property
    def is_sampled(self) -> bool:
        """Whether the sequence's next token is chosen from this step's logits."""
        return self.count == self.sequence.pending

    @property
    def row_count(self) -> int:
        """Tokens that the step computes."""
        return self.count + len(self.draft)


@dataclass(slots=True, kw_only=True)
class Plan:
    """One step. Entries of several tokens are prompts' chunks."""

    entries: list[Scheduled] = field(default_factory=list[Scheduled])
    copies: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Blocks to copy (source, target) before the step, in this order."""
    has_preempted: bool = False


class _Chunks:
    """What a step has left for prompts, while the plan takes it."""

    def __init__(self, plan: Plan, *, tokens: int, places: int) -> None:
        self._plan = plan
        self._tokens = tokens
        self._places = places

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits."""
        return self._tokens <= 0 or self._places <= 0

    def take(self, sequence: Sequence) -> None:
        """Take as many of its pending tokens as fit."""
        if not self.is_full:
            count = min(sequence.pending, self._tokens)
            self._plan.entries.append(Scheduled(sequence, count))
            self._tokens -= count
            self._places -= 1


def _age(sequence: Sequence) -> tuple[int, int]:
    return sequence.order


class Scheduler:
    """Owns the waiting and the running sequences and the block pool."""

    def __init__(self, settings: SchedulerSettings, pool: BlockPool) -> None:
        self._settings = settings
        self._max_running = min(settings.max_batch_size, settings.step_token_budget)
        self.pool = pool
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        sequence.status = Status.WAITING
        insort(self.waiting, sequence, key=_age)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its blocks are given up."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        self.pool.release(sequence.forget_blocks())

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Make `child` a copy of `parent`. Where that has no blocks or the batch is full it waits, without blocks."""
        child.inherit(parent)
        if parent.status is Status.RUNNING and len(self.running) < self._max_running:
            self.pool.share(child.blocks)
            child.status = Status.RUNNING
            insort(self.running, child, key=_age)
        else:
            child.forget_blocks()
            self.add(child)

    def park(self, sequence: Sequence) -> None:
        """Take the blocks from a running sequence and leave it alone until it is added again."""
        self.running.remove(sequence)
        sequence.status = Status.PARKED
        self.pool.release(sequence.forget_blocks())

    def replace(self, old: Sequence, new: Sequence) -> None:
        """Let `new` go on in the place of `old`, which is finished."""
        was_running = old.status is Status.RUNNING
        if was_running:
            self.running.remove(old)
        else:
            self.waiting.remove(old)
        new.inherit(old)
        new.status, old.status = old.status, Status.FINISHED
        old.blocks = []
        insort(self.running if was_running else self.waiting, new, key=_age)

    def count_decodes(self) -> int:
        """Running sequences that need one more token."""
        return sum(sequence.pending == 1 for sequence in self.running)

    def has_long_prompt(self) -> bool:
        """Whether a prompt that is being read, or is next in line, is longer than one step's budget."""
        unread = (*(sequence for sequence in self.running if sequence.pending > 1), *self.waiting[:1])
        return any(len(sequence.tokens) > self._settings.step_token_budget for sequence in unread)

    def schedule(self, *, now_s: float, prompt_tokens: int | None = None) -> Plan:
        """Choose the next step's tokens, at most `prompt_tokens` of prompts, and give them blocks. Empty when nothing
        waits or runs."""
        plan = Plan()
        self._plan_decodes(plan)
        room = self._settings.step_token_budget - self._plan_drafts(plan)
        limit = self._settings.max_prefill_tokens
        chunks = _Chunks(
            plan,
            tokens=min(room, limit if prompt_tokens is None else min(limit, prompt_tokens)),
            places=self._settings.max_prefill_batch_size or self._settings.max_batch_size,
        )
        for sequence in self.running:
            if sequence.pending > 1:
                chunks.take(sequence)
        if not plan.has_preempted:
            self._admit(chunks)
        for entry in plan.entries:
            if entry.sequence.active.scheduled_at_s is None:
                entry.sequence.active.scheduled_at_s = now_s
        return plan

    def commit(self, plan: Plan) -> None:
        """The step has been computed: its tokens are in the blocks, and full blocks can be found by others."""
        for sequence, count in ((entry.sequence, entry.count) for entry in plan.entries):
            sequence.computed += count
            if self._settings.prefix_cache and sequence.computed // BLOCK_SIZE > sequence.registered:
                self._register(sequence)

    def _register(self, sequence: Sequence) -> None:
        full = sequence.computed // BLOCK_SIZE
        sequence.active.hasher.extend(sequence.keys, sequence.tokens, full)
        for block in range(sequence.registered, full):
            sequence.blocks[block] = self.pool.register(sequence.blocks[block], sequence.keys[block])
        sequence.registered = full

    def _plan_decodes(self, plan: Plan) -> None:
        for sequence in list(self.running):
            if sequence.status is Status.RUNNING and sequence.pending == 1 and self._make_room(sequence, plan):
                self._own_blocks(sequence, 1, plan)
                plan.entries.append(Scheduled(sequence, 1))

    def _plan_drafts(self, plan: Plan) -> int:
        """Add drafts to the decodes, where they need no block that is not free. Half of the budget is left to prompts,
        if there are any. Returns the tokens planned so far."""
        planned = len(plan.entries)
        if self._settings.max_ngram_draft == 0:
            return planned
        chance = least_chance(planned)
        has_prompts = bool(self.waiting) or len(self.running) > planned
        most = min(MAX_ROWS, self._settings.step_token_budget // (2 if has_prompts else 1))
        for i, entry in enumerate(plan.entries):
            draft = entry.sequence.propose(most - planned, chance=chance)
            while draft and self._blocks_missing(entry.sequence, 1 + len(draft)) > self.pool.available:
                draft = draft[:-1]
            if draft:
                self._own_blocks(entry.sequence, 1 + len(draft), plan)
                plan.entries[i] = Scheduled(entry.sequence, 1, draft)
                planned += len(draft)
        return planned

    def _admit(self, chunks: "_Chunks") -> None:
        """Start waiting sequences while tokens, places and blocks last; the first that does not fit ends it."""
        being_computed: set[bytes] | None = None
        for sequence in list(self.waiting):
            if chunks.is_full or len(self.running) >= self._max_running:
                break
            being_computed = self._keys_being_computed() if being_computed is None else being_computed
            found = self._find_prefix(sequence)
            if len(found) < len(sequence.keys) and sequence.keys[len(found)] in being_computed:
                continue  # another sequence is computing its next block: share it a step later
            if not self._allocate(sequence, found):
                break
            chunks.take(sequence)
            being_computed.update(sequence.keys[len(found) :])

    def _keys_being_computed(self) -> set[bytes]:
        return {key for sequence in self.running for key in sequence.keys[sequence.registered :]}

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """Known blocks at the beginning of its tokens. At least one token is left to compute."""
        if not self._settings.prefix_cache:
            return []
        sequence.active.hasher.extend(sequence.keys, sequence.tokens, (len(sequence.tokens) - 1) // BLOCK_SIZE)
        return self.pool.find(sequence.keys[: (len(sequence.tokens) - 1) // BLOCK_SIZE])

    def _allocate(self, sequence: Sequence, found: list[int]) -> bool:
        """Move a waiting sequence into the batch with blocks for all its tokens, if there are enough. One block for
        each running sequence is left alone, so that admission does not cause the next preemption."""
        missing = blocks_for(len(sequence.tokens)) - len(found)
        if missing + self.pool.count_cached(found) + len(self.running) > self.pool.available:
            return False
        self.pool.share(found)
        sequence.blocks = found + [self.pool.take() for _ in range(missing)]
        sequence.computed = len(found) * BLOCK_SIZE
        sequence.registered = len(found)
        self.waiting.remove(sequence)
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=_age)
        if sequence.active.cached_tokens is None:
            self._count_prefix(sequence)
        return True

    def _count_prefix(self, sequence: Sequence) -> None:
        sequence.active.cached_tokens = sequence.computed
        self.prefix_queries += len(sequence.tokens)
        self.prefix_hits += sequence.computed

    def _make_room(self, sequence: Sequence, plan: Plan) -> bool:
        """Preempt the youngest until the sequence's next token has a block. False: it was itself the youngest."""
        while self._blocks_missing(sequence, 1) > self.pool.available:
            victim = self.running.pop()
            self.pool.release(victim.forget_blocks())
            self.add(victim)
            self.preemptions += 1
            plan.has_preempted = True
            if victim is sequence:
                return False
        return True

    def _blocks_missing(self, sequence: Sequence, count: int) -> int:
        """Blocks to take before `count` more tokens can be written: new ones, and a copy of a shared last one."""
        missing = blocks_for(sequence.computed + count) - len(sequence.blocks)
        return missing + self._writes_shared_block(sequence)

    def _writes_shared_block(self, sequence: Sequence) -> bool:
        block = sequence.computed // BLOCK_SIZE
        return block < len(sequence.blocks) and self.pool.is_shared(sequence.blocks[block])

    def _own_blocks(self, sequence: Sequence, count: int, plan: Plan) -> None:
        if self._writes_shared_block(sequence):
            shared = sequence.blocks[sequence.computed // BLOCK_SIZE]
            copy = self.pool.take()
            plan.copies.append((shared, copy))
            self.pool.release([shared])
            sequence.blocks[sequence.computed // BLOCK_SIZE] = copy
        while len(sequence.blocks) < blocks_for(sequence.computed + count):
            sequence.blocks.append(self.pool.take())
