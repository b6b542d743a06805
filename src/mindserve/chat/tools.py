"""Tools of a request: which ones the model sees, and how its calls are read."""

import logging
from collections.abc import Sequence

from mindserve.chat.templates import Template
from mindserve.contract.request import ChatRequest, Tool, ToolChoiceMode
from mindserve.errors import InvalidRequest
from mindserve.output.formats.base import ToolFormat
from mindserve.output.formats.registry import deduce_format, find_format
from mindserve.output.plan import ToolPlan
from mindserve.settings.values import ModelSettings

_log = logging.getLogger(__name__)


class ToolFormats:
    """Which format the model's calls have: the configured one, else what the template shows, else the family's."""

    def __init__(self, settings: ModelSettings, *, model_type: str) -> None:
        self._model_type = model_type
        self._configured = self._find(settings.tool_call_parser)

    def _find(self, name: str | None) -> ToolFormat | None:
        if not name:
            return None
        found = find_format(name)
        if found is None:
            _log.warning("tool_call_parser %r is not known: the model's own format is used", name)
        return found

    def of(self, template: Template) -> ToolFormat | None:
        """None: not known, so calls come as content."""
        return self._configured or deduce_format(template.source, self._model_type)

    def plan(self, tools: Sequence[Tool], template: Template) -> ToolPlan | None:
        """None where no tools are in play."""
        if not tools:
            return None
        return ToolPlan(format=self.of(template), parameters={tool.name: tool.parameters for tool in tools})


def offered_tools(request: ChatRequest) -> tuple[Tool, ...]:
    """The tools that the model sees: a named choice leaves only that one, `none` leaves none."""
    choice = request.tool_choice
    if choice.mode is ToolChoiceMode.NONE:
        return ()
    if choice.mode is not ToolChoiceMode.NAMED:
        return request.tools
    named = tuple(tool for tool in request.tools if tool.name == choice.name)
    if not named:
        raise InvalidRequest(f"Parameter tool_choice names no function of tools: {choice.name}", param="tool_choice")
    return named
