"""Whether the model thinks in answer to a prompt, and where its thought begins (contract: response.md section 4)."""

from typing import Any, Final

from mindserve.chat.templates import Template
from mindserve.contract.request import ChatRequest
from mindserve.output.formats.base import ReasoningFormat
from mindserve.output.formats.reasoning import THINK_TAGS
from mindserve.output.formats.registry import deduce_reasoning
from mindserve.output.plan import ThoughtPlan, ThoughtStart
from mindserve.settings.values import ModelSettings
from mindserve.text.base import Tokenizer

_SWITCHES: Final = ("enable_thinking", "thinking")
"""What templates call the switch: Qwen3's name, which is also the request's, and DeepSeek's."""


class Thinking:
    """What the model's files and the configuration say about thoughts."""

    def __init__(self, tokenizer: Tokenizer, settings: ModelSettings, *, model_type: str) -> None:
        self._defaults = tokenizer.template_defaults
        self._is_parsed = settings.enable_reasoning
        self._model_type = model_type
        self._has_tags = all(tokenizer.token_id(tag) is not None for tag in (THINK_TAGS.opening, THINK_TAGS.closing))

    def variables(self, request: ChatRequest) -> dict[str, Any]:
        """The request's switches for the template, over the weights' own."""
        given = dict(request.template_kwargs)
        if request.enable_thinking is not None:
            given |= {name: given.get(name, request.enable_thinking) for name in _SWITCHES}
        return {**self._defaults, **given}

    def plan(self, request: ChatRequest, template: Template, prompt: str) -> ThoughtPlan | None:
        """None for models that cannot think."""
        has_tags = self._has_tags or THINK_TAGS.opening in template.source
        found = deduce_reasoning(template.source, self._model_type) or (THINK_TAGS if has_tags else None)
        if found is None and not self._is_parsed:
            return None
        start = self._start(request, template, prompt, found)
        is_split = self._is_parsed and start is not ThoughtStart.NONE
        return ThoughtPlan(format=found or THINK_TAGS, start=start, is_split=is_split)

    def _start(
        self, request: ChatRequest, template: Template, prompt: str, known: ReasoningFormat | None
    ) -> ThoughtStart:
        """The prompt's end tells most: templates open the thought there, or close an empty one to switch it off."""
        end = prompt.rstrip()
        if request.enable_thinking is False or end.endswith(THINK_TAGS.closing):
            return ThoughtStart.NONE
        # An operator who has the thoughts of a known model parsed says that it thinks.
        always_thinks = not template.variables.isdisjoint(_SWITCHES) or (self._is_parsed and known is not None)
        if always_thinks or end.endswith(THINK_TAGS.opening):
            return ThoughtStart.ASSUMED
        return ThoughtStart.IF_OPENED
