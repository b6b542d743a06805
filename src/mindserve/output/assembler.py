"""One choice's tokens to its events: decoding, stop strings, parser, in that order, and nothing is ever retracted."""

import random
import string

from mindserve.engine.base import FinishReason, TokenLogprob
from mindserve.output.arguments import ParsedCall
from mindserve.output.decoding import IncrementalDecoder
from mindserve.output.events import LogprobEntry, OutputEvent, ToolCallDelta
from mindserve.output.formats.base import markers_of
from mindserve.output.logprobs import LogprobReader
from mindserve.output.parser import AnswerParser, Parsed
from mindserve.output.plan import OutputPlan, ThoughtStart
from mindserve.output.stops import StopMatcher
from mindserve.output.thought import ThoughtTracker
from mindserve.text.base import Tokenizer


class ChoiceAssembler:
    """Assembles one choice. Feed every generated token; the event that carries `finish_reason` is the last one.

    Each token gives one event, with empty content when what it said could still become something else: a character, a
    stop string, a tag, a call, trailing whitespace.
    """

    def __init__(self, plan: OutputPlan, *, tokenizer: Tokenizer, index: int) -> None:
        self.is_finished = False
        self._plan = plan
        self._tokenizer = tokenizer
        self._index = index
        self._decoder = IncrementalDecoder(tokenizer)
        self._stops = StopMatcher(plan.stop) if plan.stop else None
        self._thought = ThoughtTracker(plan.thought, tokenizer) if plan.thought else None
        is_split = plan.thought is not None and plan.thought.is_split and plan.thought.start is not ThoughtStart.NONE
        self._parser = AnswerParser(plan, self._thought if is_split else None) if is_split or plan.tools else None
        self._markers = markers_of(
            plan.thought.format if plan.thought else None, plan.tools.format if plan.tools else None
        )
        self._logprobs = LogprobReader(tokenizer, skip_special_tokens=plan.skip_special_tokens)
        self._reports_full_text = plan.reports_full_text and not plan.tools
        self._length = 0
        """Characters decoded so far."""
        self._calls = 0
        self._content: list[str] = []

    @property
    def content(self) -> str:
        """The whole content so far."""
        if len(self._content) > 1:
            self._content = ["".join(self._content)]
        return self._content[0] if self._content else ""

    @property
    def reasoning_tokens(self) -> int | None:
        """Tokens of the thought so far, a generated opening tag included; None where the plan has no thought."""
        return self._thought.tokens if self._thought else None

    def feed(
        self, token_id: int, *, logprob: TokenLogprob | None = None, finish: FinishReason | None = None
    ) -> OutputEvent:
        """The event of one token. Raises RuntimeError when the choice has ended already."""
        if self.is_finished:
            raise RuntimeError("the choice has ended")
        text = self._decode(token_id) if self._is_shown(token_id, finish) else ""
        if self._stops:
            text = self._stops.feed(text)
            if self._stops.matched is not None:
                finish = finish or FinishReason.STOP
        entries = None if logprob is None else (self._logprobs.read(token_id, logprob),)
        if finish is not None:
            parsed = self._flush(text) + self._end_token(token_id, finish)
            return self._event(parsed, logprobs=entries, finish=finish)
        if self._parser:
            return self._event(self._parser.feed(text), logprobs=entries)
        self._content.append(text)
        full_text = self.content if self._reports_full_text else None
        return OutputEvent(index=self._index, content=text, logprobs=entries, full_text=full_text)

    def end(self, finish: FinishReason) -> OutputEvent:
        """The last event, for an end that comes without a token. Raises RuntimeError when the choice has ended."""
        if self.is_finished:
            raise RuntimeError("the choice has ended")
        return self._event(self._flush(""), finish=finish)

    def _is_shown(self, token_id: int, finish: FinishReason | None) -> bool:
        if token_id in self._plan.stop_token_ids:
            return self._plan.include_stop
        return finish is not FinishReason.STOP  # an end token is no part of the text: see _end_token

    def _decode(self, token_id: int) -> str:
        if self._plan.skip_special_tokens and self._tokenizer.is_special(token_id):
            text = self._decode_hidden(token_id)
        else:
            text = self._decoder.feed(token_id)
        self._length += len(text)
        if self._thought:
            self._thought.feed(token_id, text)
        return text

    def _decode_hidden(self, token_id: int) -> str:
        """A skipped special token's text: "" unless it means something to the parser, or is a stop string."""
        name = self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        is_marker = self._parser is not None and any(name in marker for marker in self._markers)
        if not is_marker and name not in self._plan.stop:
            return ""
        text = self._decoder.feed(token_id)
        if self._parser:
            end = self._length + len(text)
            self._parser.source.hide(end - len(name), end)
        return text

    def _flush(self, text: str) -> Parsed:
        """What is left when the text ends here, a matched stop string where the plan or the thought keeps it."""
        tail = self._decoder.flush()
        if self._stops:
            tail = "" if self._stops.matched is not None else self._stops.feed(tail) + self._stops.flush()
        stop = (self._stops.matched or "") if self._stops else ""
        if self._parser is None:
            return Parsed(text + tail + (stop if self._plan.include_stop else ""))
        before = self._parser.feed(text + tail)
        if self._plan.include_stop or not self._parser.is_thinking:
            return before + self._parser.feed(stop if self._plan.include_stop else "", is_final=True)
        last = self._parser.feed(stop, is_final=True)
        return before + (last._replace(content="") if stop else last)

    def _end_token(self, token_id: int, finish: FinishReason) -> Parsed:
        """The text of the model's own end token, which shows where special tokens do."""
        is_own = finish is FinishReason.STOP and token_id not in self._plan.stop_token_ids
        if self._plan.skip_special_tokens or not is_own or (self._stops and self._stops.matched is not None):
            return Parsed()
        text = self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
        return self._parser.append_end_token(text) if self._parser else Parsed(text)

    def _event(
        self,
        parsed: Parsed,
        *,
        logprobs: tuple[LogprobEntry, ...] | None = None,
        finish: FinishReason | None = None,
    ) -> OutputEvent:
        if parsed.content:
            self._content.append(parsed.content)
        self.is_finished = finish is not None
        return OutputEvent(
            index=self._index,
            content=parsed.content,
            reasoning=parsed.reasoning,
            tool_calls=self._announce(parsed.calls) if parsed.calls else (),
            logprobs=logprobs,
            finish_reason=None if finish is None else self._reason(finish),
            full_text=self.content if self._reports_full_text else None,
        )

    def _announce(self, calls: tuple[ParsedCall, ...]) -> tuple[ToolCallDelta, ...]:
        deltas: list[ToolCallDelta] = []
        for call in calls:
            deltas.append(ToolCallDelta(index=self._calls, id=_new_call_id(), name=call.name))
            deltas.append(ToolCallDelta(index=self._calls, arguments=call.arguments))
            self._calls += 1
        return tuple(deltas)

    def _reason(self, finish: FinishReason) -> str:
        """Contract: decisions P-C8."""
        is_cut = finish is FinishReason.LENGTH and self._parser is not None and self._parser.is_inside_call
        if self._calls and not is_cut and finish in (FinishReason.STOP, FinishReason.LENGTH):
            return "tool_calls"
        return "length" if finish is FinishReason.LENGTH else "stop"


def _new_call_id() -> str:
    return "call_" + "".join(random.choices(string.ascii_letters + string.digits, k=8))
