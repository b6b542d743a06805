"""The answer's parts: thought first, then content and calls."""

from typing import NamedTuple

from mindserve.output.arguments import ParsedCall
from mindserve.output.plan import OutputPlan
from mindserve.output.source import Source
from mindserve.output.thought import ThoughtTracker
from mindserve.output.tools import ToolReader


class Parsed(NamedTuple):
    """What became certain."""

    content: str = ""
    reasoning: str | None = None
    """"" says that there is a thought though nothing of it is to be shown."""
    calls: tuple[ParsedCall, ...] = ()

    def __add__(self, later: "Parsed") -> "Parsed":  # pyright: ignore[reportIncompatibleMethodOverride] - not a tuple's
        """Both together."""
        reasoning = self.reasoning if later.reasoning is None else (self.reasoning or "") + later.reasoning
        return Parsed(self.content + later.content, reasoning, self.calls + later.calls)


class AnswerParser:
    """Splits one choice's text. What it returns, put together, does not depend on how the text came in."""

    def __init__(self, plan: OutputPlan, thought: ThoughtTracker | None) -> None:
        """`thought` is None where it is not split off."""
        self.source = Source()
        self._thought = thought
        self._tools = ToolReader(plan.tools, plan.tools.format) if plan.tools and plan.tools.format else None
        self._is_stripped = plan.tools is not None
        self._held_space = ""
        self._has_content = False
        self._has_reasoning = False

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends inside the thought."""
        return self._thought is not None and self._thought.is_open

    @property
    def calls(self) -> int:
        """Complete calls so far."""
        return self._tools.calls if self._tools else 0

    @property
    def is_inside_call(self) -> bool:
        """Whether the text ended within a call."""
        return self._tools is not None and self._tools.is_inside_call

    def feed(self, text: str, *, is_final: bool = False) -> Parsed:
        """What is certain after this text; with `is_final` everything is."""
        self.source.append(text)
        reasoning = self._read_thought(is_final=is_final)
        if self.is_thinking:
            return Parsed(reasoning=reasoning)
        content, calls = self._read_answer(is_final=is_final)
        return Parsed(content=self._strip(content), reasoning=reasoning, calls=tuple(calls))

    def append_end_token(self, text: str) -> Parsed:
        """The text of a visible end token, after everything else and part of no call."""
        if self.is_thinking:
            return Parsed(reasoning=text)
        return Parsed(content="" if self.calls else self._strip(text))

    def _read_thought(self, *, is_final: bool) -> str | None:
        if self._thought is None or (not self._thought.is_open and self._has_reasoning):
            return None
        reasoning = self._thought.read(self.source, is_final=is_final) if self._thought.is_open else ""
        is_shown = bool(reasoning) or ((is_final or not self._thought.is_open) and not self._has_reasoning)
        self._has_reasoning |= is_shown
        return reasoning if is_shown else None

    def _read_answer(self, *, is_final: bool) -> tuple[str, list[ParsedCall]]:
        if self._tools:
            return self._tools.read(self.source, is_final=is_final)
        return self.source.take(len(self.source.text)), []

    def _strip(self, content: str) -> str:
        if not self._is_stripped:
            return content
        content = self._held_space + content
        if not self._has_content:
            content = content.lstrip()
        kept = content.rstrip()
        self._held_space = content[len(kept) :]
        self._has_content |= bool(kept)
        return kept
