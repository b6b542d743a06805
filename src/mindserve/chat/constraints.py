"""What a request obliges the model to write: JSON, calls, valid calls, or a thought of limited length."""

from collections.abc import Sequence

from mindserve.contract.request import ChatRequest, ResponseFormatKind, Tool, ToolChoiceMode
from mindserve.engine.base import TokenMask
from mindserve.errors import InvalidRequest
from mindserve.output.formats.base import ToolFormat
from mindserve.output.grammar import GrammarCompiler, ThoughtLimits
from mindserve.output.literals import CallableTool
from mindserve.output.plan import OutputPlan, ThoughtPlan, ThoughtStart
from mindserve.output.schemas import closed


class Constraints:
    """Makes the masks of one model's requests. Compiling a grammar takes time: not for the event loop."""

    def __init__(self, compiler: GrammarCompiler, *, early_stopping_text: str | None) -> None:
        self._compiler = compiler
        self._early_stopping_text = early_stopping_text or ""

    def mask(self, request: ChatRequest, tools: Sequence[Tool], plan: OutputPlan) -> TokenMask | None:
        """None where the model may write what it likes. Raises InvalidRequest for what cannot be enforced."""
        thought = self._limits(request, plan.thought)
        if plan.tools is not None and (mask := self._calls(request, tools, plan.tools.format, thought)):
            return mask
        wanted = request.response_format
        if wanted.kind is not ResponseFormatKind.TEXT:
            schema = wanted.schema if wanted.kind is ResponseFormatKind.JSON_SCHEMA else None
            return self._compiler.json_mask(schema, is_strict=wanted.strict, thought=thought)
        if thought is not None and thought.budget_tokens is not None:
            return self._compiler.thought_mask(thought)
        return None

    def _limits(self, request: ChatRequest, thought: ThoughtPlan | None) -> ThoughtLimits | None:
        """The thought before a constrained answer. One that nobody splits off or asked for is part of the answer."""
        if thought is None or thought.start is ThoughtStart.NONE:
            return None
        if not thought.is_split and not request.enable_thinking:
            return None
        budget_tokens = request.thinking_budget
        return ThoughtLimits(plan=thought, budget_tokens=budget_tokens, early_stopping_text=self._early_stopping_text)

    def _calls(
        self, request: ChatRequest, tools: Sequence[Tool], format_: ToolFormat | None, thought: ThoughtLimits | None
    ) -> TokenMask | None:
        mode = request.tool_choice.mode
        is_forced = mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED)
        if not is_forced and not any(tool.strict for tool in tools):
            return None
        if format_ is None:
            raise InvalidRequest(
                f"The model {request.model} does not support "
                + ("a tool_choice that forces a call." if is_forced else "strict functions."),
                param="tool_choice" if is_forced else "tools",
            )
        callable_tools = [
            CallableTool(name=tool.name, schema=closed(tool.parameters), is_strict=tool.strict) for tool in tools
        ]
        if not is_forced:
            # Calls count in a thought too, unless it is split off.
            is_apart = thought is not None and (thought.plan.is_split or thought.budget_tokens is not None)
            return self._compiler.strict_mask(format_, callable_tools, thought=thought if is_apart else None)
        is_single = mode is ToolChoiceMode.NAMED
        return self._compiler.calls_mask(format_, callable_tools, is_single=is_single, thought=thought)
