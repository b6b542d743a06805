"""Beam search on top of vLLM, which has none: every step asks for one token after each beam, with its best rivals.

The beams' common past is in the prefix cache as far as it fills whole blocks; the rest is computed again.
"""

import asyncio
from itertools import count

from mindserve.engine.base import FinishReason, GenerateRequest, TokenEvent
from mindserve.engine.beam import Beam, BeamSearch, Candidates, Hypothesis
from mindserve.engine.vllm.border import Adapter, Completion, Core, Question
from mindserve.engine.vllm.sampling import Frame, beam_fields
from mindserve.engine.vllm.sequence import token_logprob
from mindserve.engine.vllm.stream import Steps, Stream
from mindserve.errors import EngineFailure


class BeamRun:
    """One request's search. Its sequences stand for hypotheses, and get them all at the end."""

    def __init__(self, request: GenerateRequest, frame: Frame, *, core: Core, adapter: Adapter | None) -> None:
        self._request = request
        self._frame = frame
        self._core = core
        self._adapter = adapter
        self._numbers = count()
        self._search = BeamSearch(
            width=request.n,
            shown=request.sampling.logprobs,
            end_token_ids=frame.end_token_ids,
            max_new_tokens=frame.max_new_tokens,
        )

    async def run(self, stream: Stream, steps: Steps) -> None:
        """To the end. Raises EngineFailure and whatever vLLM raises."""
        while beams := self._search.beams:
            try:
                async with asyncio.TaskGroup() as group:
                    for beam in beams:
                        group.create_task(self._find(beam, stream, steps))
            except* Exception as errors:
                raise _first(errors) from None
            self._search.advance()
        _hand_out(self._search.hypotheses, stream)

    async def _find(self, beam: Beam, stream: Stream, steps: Steps) -> None:
        needed, first = self._search.candidates_needed, stream.sequences[0]
        fields = beam_fields(self._request, self._frame, candidates=needed, generated=len(beam.token_ids))
        question = Question(
            token_ids=[*self._request.prompt_token_ids, *beam.token_ids],
            sampling=fields,
            media=self._request.media,
            adapter=self._adapter,
        )
        request_id = f"{self._request.request_id}-beam-{next(self._numbers)}"
        async for output in self._core.ask(question, request_id):
            if first.queue_wait_us is None:
                first.read_start(output)
            beam.candidates = _candidates(output.outputs[0], needed)
            steps.post(stream, first, [])


def _candidates(completion: Completion, needed: int) -> Candidates:
    if not completion.token_ids or not completion.logprobs:
        raise EngineFailure(f"The engine gave up the request ({completion.finish_reason}).")
    entries = completion.logprobs[0]
    possible = {i: entry for i, entry in entries.items() if entry.logprob > float("-inf")}
    return token_logprob(completion.token_ids[0], possible, shown=needed).top


def _hand_out(hypotheses: list[Hypothesis], stream: Stream) -> None:
    """The best to the first; there may be fewer than were asked for."""
    events: list[TokenEvent] = []
    for sequence in stream.sequences:
        if sequence.is_over:
            continue
        sequence.is_over = True
        found = hypotheses[sequence.index] if sequence.index < len(hypotheses) else None
        event = TokenEvent(
            index=sequence.index,
            token_ids=() if found is None else found.token_ids,
            step=stream.last_step,
            logprobs=found.logprobs if found is not None and sequence.wants_logprobs else None,
            finish_reason=FinishReason.STOP if found is None else found.reason,
            cached_tokens=stream.cached_tokens,
            cumulative_logprob=0.0 if found is None else found.score,
        )
        events.append(event)
    if events:
        stream.put(events)


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    """Tasks of one group raise no groups."""
    error = errors.exceptions[0]
    assert not isinstance(error, ExceptionGroup)
    return error
