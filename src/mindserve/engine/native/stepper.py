"""One engine step after the other: plan, run, sample, report. No thread and no event loop in here.

Requests are known by the number that their submitter gave them; events are collected per number until taken.
"""

import logging
from collections.abc import Callable
from itertools import islice
from time import perf_counter

from mindserve.engine.base import EngineStats, FinishReason, GenerateRequest, ModelInfo, StepInfo
from mindserve.engine.native.batch import build_batch
from mindserve.engine.native.beam import BeamSequences
from mindserve.engine.native.blocks import BlockPool
from mindserve.engine.native.media import RequestMedia
from mindserve.engine.native.outbox import Events, Outbox
from mindserve.engine.native.pace import Pace
from mindserve.engine.native.sampling.sampler import Sampled, sample
from mindserve.engine.native.sampling.state import SamplerState
from mindserve.engine.native.scheduler import Plan, Scheduled, Scheduler
from mindserve.engine.native.sequence import ActiveRequest, Sequence, Status
from mindserve.engine.native.speculate import count_agreed
from mindserve.engine.native.step import Runner, StepOutput
from mindserve.errors import EngineFailure, MindserveError
from mindserve.settings.values import SchedulerSettings

logger = logging.getLogger(__name__)


class Stepper:
    """The engine's state between steps. A request that fails never takes others with it, except those of its step."""

    def __init__(
        self,
        runner: Runner,
        info: ModelInfo,
        settings: SchedulerSettings,
        *,
        context_len: int,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._runner = runner
        self._info = info
        self._settings = settings
        self._context_len = context_len
        """Tokens of prompt and output together; the caller has refused prompts that leave no room."""
        self._clock = clock
        self._scheduler = Scheduler(settings, BlockPool(runner.block_count))
        self._pace = Pace(settings.step_stretch)
        self._requests: dict[int, ActiveRequest] = {}
        self._searches: dict[int, BeamSequences] = {}
        """Beam searches by request number. The sequences of such a request stand for its hypotheses and never run."""
        self._unprepared: set[int] = set()
        """Numbers of requests whose media the towers have not read yet."""
        self._outbox = Outbox()
        self._draft_tokens = self._accepted_tokens = 0
        self.failed_steps = 0
        """Steps that failed since the last one that did not."""

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return len(self._requests) > len(self._unprepared)

    def add(self, number: int, request: GenerateRequest, *, arrival_s: float) -> None:
        """Queue a request. `number` counts the requests in the order of their arrival. One with media waits until
        `provide_media`."""
        try:
            self._start(number, request, arrival_s)
        except Exception as failure:  # a mask is foreign code
            error = EngineFailure(f"The output's constraint failed: {failure}")
            self._outbox.refusal(number, request.n, error, self._no_step())

    def _start(self, number: int, request: GenerateRequest, arrival_s: float) -> None:
        room = self._context_len - len(request.prompt_token_ids)
        active = ActiveRequest(
            request,
            number=number,
            arrival_s=arrival_s,
            max_new_tokens=min(room, self._settings.max_iter_times, request.sampling.max_tokens),
            eos_token_ids=self._info.eos_token_ids,
            max_draft=self._settings.max_ngram_draft,
        )
        if request.media:
            self._unprepared.add(number)
        else:
            self._enqueue(active)
        self._requests[number] = active

    def provide_media(self, number: int, media: RequestMedia | MindserveError) -> None:
        """Let a request that waited for the towers join the line; it ends if they failed."""
        active = self._requests.get(number)
        if active is None:
            return
        self._unprepared.discard(number)
        if isinstance(media, MindserveError):
            self._end_all(active, FinishReason.ERROR, error=media)
        else:
            active.media = media
            self._enqueue(active)

    def _enqueue(self, active: ActiveRequest) -> None:
        if active.is_beam_search:
            self._searches[active.number] = BeamSequences(active, self._scheduler)
        else:
            first = active.unfinished[0]
            first.tokens = list(active.request.prompt_token_ids)
            self._scheduler.add(first)

    def cancel(self, number: int, index: int | None = None) -> None:
        """End one sequence, or all of the request. What has ended already stays as it is."""
        active = self._requests.get(number)
        if active is None:
            return
        for sequence in active.unfinished:
            if index is None or sequence.index == index:
                self._end(sequence, FinishReason.CANCELLED)

    def cancel_all(self) -> None:
        """End everything."""
        for number in list(self._requests):
            self.cancel(number)

    def fail_all(self, error: MindserveError) -> None:
        """End everything because the engine cannot go on."""
        for active in list(self._requests.values()):
            self._end_all(active, FinishReason.ERROR, error=error)

    def take_events(self) -> Events:
        """The events since the last call."""
        return self._outbox.take()

    def stats(self) -> EngineStats:
        """Counters."""
        scheduler, pool = self._scheduler, self._scheduler.pool
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self._unprepared),
            total_blocks=pool.block_count,
            free_blocks=pool.free_count,
            cached_blocks=pool.cached_count,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            preemptions=scheduler.preemptions,
            draft_tokens=self._draft_tokens,
            accepted_tokens=self._accepted_tokens,
        )

    def step(self) -> None:
        """Compute one step. If it fails its sequences end with an error and the others go on."""
        started_s = self._clock()
        plan = self._scheduler.schedule(now_s=started_s, prompt_tokens=self._prompt_tokens())
        if not plan.entries:
            return
        try:
            output = self._run(plan)
            time_s = self._clock()
            self._learn_pace(plan, time_s - started_s)
            self._answer(plan, output, time_s)
            self.failed_steps = 0
        except Exception as error:
            logger.exception("An engine step failed")
            self.failed_steps += 1
            self._fail(plan, error)

    def _prompt_tokens(self) -> int | None:
        """How many the next step may have. Only long prompts are paced: short ones cut into crumbs would cost more
        throughput than the smoothness is worth."""
        scheduler = self._scheduler
        if not scheduler.has_long_prompt():
            return None
        decodes = scheduler.count_decodes()
        prompts = len(scheduler.waiting) + len(scheduler.running) - decodes
        return self._pace.prompt_tokens(decodes=decodes, prompts=prompts)

    def _learn_pace(self, plan: Plan, seconds: float) -> None:
        prompt_tokens = sum(entry.count for entry in plan.entries if entry.count > 1)
        rows = sum(entry.row_count for entry in plan.entries)
        self._pace.learn(decodes=rows - prompt_tokens, prompt_tokens=prompt_tokens, seconds=seconds)

    def _run(self, plan: Plan) -> StepOutput:
        if plan.copies:
            self._runner.copy_blocks(plan.copies)
        return self._runner.step(build_batch(plan))

    def _answer(self, plan: Plan, output: StepOutput, time_s: float) -> None:
        ready = [entry for entry in plan.entries if entry.is_sampled]
        self._scheduler.commit(plan)
        if not ready:
            return
        wanted: list[tuple[Sequence, tuple[int, ...]]] = []
        rows: list[tuple[int, SamplerState]] = []
        row = 0
        for entry in ready:
            for sequence in self._with_siblings(entry.sequence):
                wanted.append((sequence, entry.draft))
                rows += [(row + i, sequence.sampler) for i in range(1 + len(entry.draft))]
            row += 1 + len(entry.draft)
        results = iter(sample(rows, output))
        infos = self._step_infos(ready, time_s)
        for sequence, draft in wanted:
            of_sequence = list(islice(results, 1 + len(draft)))
            if sequence.active.is_beam_search:
                self._collect(sequence, of_sequence[0])
            else:
                self._advance(sequence, self._agreed(draft, of_sequence), infos[sequence.active])
        for active in infos:
            if active.number in self._searches:
                self._advance_search(active, infos[active])

    def _with_siblings(self, parent: Sequence) -> list[Sequence]:
        """The sequence, and after the prompt's last token its siblings, which go their own ways from here."""
        if parent.active.is_beam_search:
            return [parent]
        newborn = [sibling for sibling in parent.active.sequences if sibling.status is Status.UNBORN]
        for sibling in newborn:
            self._scheduler.fork(parent, sibling)
        return [parent, *newborn]

    def _step_infos(self, answered: list[Scheduled], time_s: float) -> dict[ActiveRequest, StepInfo]:
        requests = dict.fromkeys(entry.sequence.active for entry in answered)
        infos: dict[ActiveRequest, StepInfo] = {}
        for active in requests:
            wait_us = round(1e6 * active.end_wait(time_s))
            infos[active] = StepInfo(batch_size=len(requests), queue_wait_us=wait_us, time_s=time_s)
        return infos

    def _agreed(self, draft: tuple[int, ...], results: list[Sampled]) -> list[Sampled]:
        """What was chosen as long as it is what the draft foretold, and the first choice that differs."""
        agreed = count_agreed(draft, [result.token_id for result in results])
        self._draft_tokens += len(draft)
        self._accepted_tokens += agreed
        return results[: agreed + 1]

    def _advance(self, sequence: Sequence, results: list[Sampled], info: StepInfo) -> None:
        kept: list[Sampled] = []
        reason, error = None, None
        for result in results:
            reason, error = self._accept(sequence, result)
            if result.token_id is not None:
                kept.append(result)
            if reason is not None:
                break
        sequence.computed += max(0, len(kept) - 1)  # the draft's tokens are in the blocks
        self._outbox.tokens(sequence, kept, info, reason=reason, error=error)
        if reason is not None:
            self._remove(sequence)

    def _accept(self, sequence: Sequence, result: Sampled) -> tuple[FinishReason | None, MindserveError | None]:
        """Add a token to the sequence; returns why it ends, if it does."""
        if result.token_id is None:
            return (FinishReason.STOP if result.error is None else FinishReason.ERROR), result.error
        if result.logprob is not None:
            sequence.cumulative_logprob += result.logprob.logprob
        reason = sequence.append(result.token_id)
        if reason is None:
            try:
                sequence.sampler.accept(result.token_id)
            except Exception as failure:
                return FinishReason.ERROR, EngineFailure(f"The output's constraint failed: {failure}")
        return reason, None

    def _collect(self, sequence: Sequence, result: Sampled) -> None:
        search = self._searches.get(sequence.active.number)
        if search is None:
            return  # another of its beams has failed in this step
        if result.error is not None:
            self._end_all(sequence.active, FinishReason.ERROR, error=result.error)
        else:
            search.collect(sequence, () if result.logprob is None else result.logprob.top)

    def _advance_search(self, active: ActiveRequest, info: StepInfo) -> None:
        try:
            hypotheses = self._searches[active.number].advance()
        except Exception as failure:
            self._end_all(active, FinishReason.ERROR, error=EngineFailure(f"The beam search failed: {failure}"))
            return
        if hypotheses is None:
            return
        for sequence in active.unfinished:
            if sequence.index < len(hypotheses):
                self._outbox.hypothesis(sequence, hypotheses[sequence.index], info)
                self._remove(sequence)
            else:
                self._end(sequence, FinishReason.STOP, info=info)

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        error: MindserveError | None = None,
        info: StepInfo | None = None,
    ) -> None:
        """The terminal event of a sequence that ends without a token."""
        self._outbox.tokens(sequence, (), info or self._no_step(), reason=reason, error=error)
        self._remove(sequence)

    def _no_step(self) -> StepInfo:
        """Of events that no step made."""
        return StepInfo(batch_size=0, queue_wait_us=0, time_s=self._clock())

    def _remove(self, sequence: Sequence) -> None:
        active = sequence.active
        heir = (
            None
            if active.is_beam_search
            else next((other for other in active.sequences if other.status is Status.UNBORN), None)
        )
        if sequence.status is Status.UNBORN or heir is None:
            self._scheduler.finish(sequence)
        else:
            self._scheduler.replace(sequence, heir)  # somebody has to compute the prompt
        if not active.unfinished:
            del self._requests[active.number]
            self._unprepared.discard(active.number)
            search = self._searches.pop(active.number, None)
            if search is not None:
                search.release()

    def _end_all(self, active: ActiveRequest, reason: FinishReason, *, error: MindserveError | None = None) -> None:
        for sequence in active.unfinished:
            self._end(sequence, reason, error=error)

    def _fail(self, plan: Plan, cause: Exception) -> None:
        error = cause if isinstance(cause, MindserveError) else EngineFailure("The engine failed in a step.")
        for active in dict.fromkeys(entry.sequence.active for entry in plan.entries):
            self._end_all(active, FinishReason.ERROR, error=error)
