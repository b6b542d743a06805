"""One engine step after the other: plan, run, sample, report. No thread and no event loop in here.

Requests are known by the number that their submitter gave them; events are collected per number until taken.
"""

import logging
from collections.abc import Callable
from time import perf_counter
from typing import TypeAlias

from mindserve.engine.base import EngineStats, FinishReason, GenerateRequest, ModelInfo, StepInfo, TokenEvent
from mindserve.engine.native.batch import build_batch
from mindserve.engine.native.beam import BeamSearch, Hypothesis
from mindserve.engine.native.blocks import BlockPool
from mindserve.engine.native.sampling.sampler import Sampled, sample
from mindserve.engine.native.scheduler import Plan, Scheduler
from mindserve.engine.native.sequence import ActiveRequest, Sequence, Status
from mindserve.engine.native.step import Runner, StepOutput
from mindserve.errors import EngineFailure, MindserveError
from mindserve.settings.values import SchedulerSettings

logger = logging.getLogger(__name__)

Events: TypeAlias = dict[int, list[TokenEvent]]
"""Request number -> what a step brought."""


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
        self._requests: dict[int, ActiveRequest] = {}
        self._searches: dict[int, BeamSearch] = {}
        """Beam searches by request number. The sequences of such a request stand for its hypotheses and never run."""
        self._events: Events = {}
        self.failed_steps = 0
        """Steps that failed since the last one that did not."""

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return bool(self._requests)

    def add(self, number: int, request: GenerateRequest, *, arrival_s: float) -> None:
        """Queue a request. `number` counts the requests in the order of their arrival."""
        room = self._context_len - len(request.prompt_token_ids)
        active = ActiveRequest(
            request,
            number=number,
            arrival_s=arrival_s,
            max_new_tokens=min(room, self._settings.max_iter_times, request.sampling.max_tokens),
            eos_token_ids=self._info.eos_token_ids,
        )
        self._requests[number] = active
        if active.is_beam_search:
            self._searches[number] = BeamSearch(active, self._scheduler)
        else:
            self._scheduler.add(active.sequences[0])

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
        events, self._events = self._events, {}
        return events

    def stats(self) -> EngineStats:
        """Counters."""
        scheduler, pool = self._scheduler, self._scheduler.pool
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            total_blocks=pool.block_count,
            free_blocks=pool.free_count,
            cached_blocks=pool.cached_count,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            preemptions=scheduler.preemptions,
        )

    def step(self) -> None:
        """Compute one step. If it fails its sequences end with an error and the others go on."""
        plan = self._scheduler.schedule(now_s=self._clock())
        if not plan.entries:
            return
        try:
            self._answer(plan, self._run(plan))
            self.failed_steps = 0
        except Exception as error:
            logger.exception("An engine step failed")
            self.failed_steps += 1
            self._fail(plan, error)

    def _run(self, plan: Plan) -> StepOutput:
        if plan.copies:
            self._runner.copy_blocks(plan.copies)
        return self._runner.step(build_batch(plan))

    def _answer(self, plan: Plan, output: StepOutput) -> None:
        time_s = self._clock()
        parents = [entry.sequence for entry in plan.entries if entry.is_sampled]
        self._scheduler.commit(plan)
        if not parents:
            return
        chosen = [(row, sequence) for row, parent in enumerate(parents) for sequence in self._with_siblings(parent)]
        results = sample([(row, sequence.sampler) for row, sequence in chosen], output)
        infos = self._step_infos(parents, time_s)
        for (_, sequence), result in zip(chosen, results, strict=True):
            if sequence.active.is_beam_search:
                self._collect(sequence, result)
            else:
                self._advance(sequence, result, infos[sequence.active])
        for active, info in infos.items():
            if active.number in self._searches:
                self._advance_search(active, info)

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
                self._emit_hypothesis(sequence, hypotheses[sequence.index], info)
                self._remove(sequence)
            else:
                self._end(sequence, FinishReason.STOP, info=info)

    def _with_siblings(self, parent: Sequence) -> list[Sequence]:
        """The sequence, and after the prompt's last token its siblings, which go their own ways from here."""
        if parent.active.is_beam_search:
            return [parent]
        newborn = [sibling for sibling in parent.active.sequences if sibling.status is Status.UNBORN]
        for sibling in newborn:
            self._scheduler.fork(parent, sibling)
        return [parent, *newborn]

    def _step_infos(self, answered: list[Sequence], time_s: float) -> dict[ActiveRequest, StepInfo]:
        requests = dict.fromkeys(sequence.active for sequence in answered)
        infos: dict[ActiveRequest, StepInfo] = {}
        for active in requests:
            wait_us = round(1e6 * active.end_wait(time_s))
            infos[active] = StepInfo(batch_size=len(requests), queue_wait_us=wait_us, time_s=time_s)
        return infos

    def _advance(self, sequence: Sequence, result: Sampled, info: StepInfo) -> None:
        if result.token_id is None:
            reason = FinishReason.STOP if result.error is None else FinishReason.ERROR
            self._end(sequence, reason, error=result.error, info=info)
            return
        reason, error = sequence.append(result.token_id), None
        if reason is None:
            try:
                sequence.sampler.accept(result.token_id)
            except Exception as failure:
                reason, error = FinishReason.ERROR, EngineFailure(f"The output's constraint failed: {failure}")
        if result.logprob is not None:
            sequence.cumulative_logprob += result.logprob.logprob
        self._emit(sequence, result, info, reason=reason, error=error)
        if reason is not None:
            self._remove(sequence)

    def _emit(
        self,
        sequence: Sequence,
        result: Sampled,
        info: StepInfo,
        *,
        reason: FinishReason | None,
        error: MindserveError | None,
    ) -> None:
        active, logprob = sequence.active, result.logprob
        wants_logprobs = active.request.sampling.logprobs is not None
        event = TokenEvent(
            index=sequence.index,
            token_ids=() if result.token_id is None else (result.token_id,),
            step=info,
            logprobs=(logprob,) if logprob is not None and wants_logprobs else None,
            finish_reason=reason,
            cached_tokens=active.cached_tokens or 0,
            cumulative_logprob=sequence.cumulative_logprob,
            error=error,
        )
        self._events.setdefault(active.number, []).append(event)

    def _emit_hypothesis(self, sequence: Sequence, hypothesis: Hypothesis, info: StepInfo) -> None:
        active = sequence.active
        event = TokenEvent(
            index=sequence.index,
            token_ids=hypothesis.token_ids,
            step=info,
            logprobs=None if active.request.sampling.logprobs is None else hypothesis.logprobs,
            finish_reason=hypothesis.reason,
            cached_tokens=active.cached_tokens or 0,
            cumulative_logprob=hypothesis.score,
        )
        self._events.setdefault(active.number, []).append(event)

    def _end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        error: MindserveError | None = None,
        info: StepInfo | None = None,
    ) -> None:
        """The terminal event of a sequence that ends without a token."""
        info = info or StepInfo(batch_size=0, queue_wait_us=0, time_s=self._clock())
        self._emit(sequence, Sampled(), info, reason=reason, error=error)
        self._remove(sequence)

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
