"""Whether the model thinks in answer to a prompt, and where its thought begins (contract: response.md section 4)."""

from typing import Any, Final

from mindserve.chat.templates import Template
from mindserve.contract.request import ChatRequest
from mindserve.output.formats.base import ReasoningFormat
from mindserve.output.plan import ThoughtPlan, ThoughtStart
from mindserve.settings.values import ModelSettings
from mindserve.text.base import Tokenizer

_TAGS: Final = ReasoningFormat(name="think")
_SWITCHES: Final = ("enable_thinking", "thinking")
"""What templates call the switch: Qwen3's name, which is also the request's, and DeepSeek's."""


class Thinking:
    """What the model's files and the configuration say about thoughts."""

    def __init__(self, tokenizer: Tokenizer, settings: ModelSettings) -> None:
        self._defaults = tokenizer.template_defaults
        self._is_parsed = settings.enable_reasoning
        self._has_tags = all(tokenizer.token_id(tag) is not None for tag in (_TAGS.opening, _TAGS.closing))

    def variables(self, request: ChatRequest) -> dict[str, Any]:
        """The request's switches for the template, over the weights' own."""
        given = dict(request.template_kwargs)
        if request.enable_thinking is not None:
            given |= {name: given.get(name, request.enable_thinking) for name in _SWITCHES}
        return {**self._defaults, **given}

    def plan(self, request: ChatRequest, template: Template, prompt: str) -> ThoughtPlan | None:
        """None for models that cannot think."""
        if not self._has_tags and _TAGS.closing not in template.source:
            return None
        start = self._start(request, template, prompt)
        return ThoughtPlan(format=_TAGS, start=start, is_split=self._is_parsed and start is not ThoughtStart.NONE)

    def _start(self, request: ChatRequest, template: Template, prompt: str) -> ThoughtStart:
        """The prompt's end tells most: templates open the thought there, or close an empty one to switch it off."""
        end = prompt.rstrip()
        if request.enable_thinking is False or end.endswith(_TAGS.closing):
            return ThoughtStart.NONE
        always_thinks = self._is_parsed or not template.variables.isdisjoint(_SWITCHES)
        if always_thinks or end.endswith(_TAGS.opening):
            return ThoughtStart.ASSUMED
        return ThoughtStart.IF_OPENED
