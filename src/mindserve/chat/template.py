"""Renders chat templates as transformers' `apply_chat_template` does: same environment, filters and variables."""

import datetime
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn, cast

from jinja2 import meta, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mindserve.chat import bounds
from mindserve.chat.bounds import Budget, RenderLimits
from mindserve.chat.failure import encode_failure
from mindserve.errors import InvalidRequest

_PROBE: Final = "probe 4711"
_PROBE_TIMEOUT_S: Final = 1.0


class ChatTemplate:
    """A compiled template. Thread-safe."""

    def __init__(self, source: str, *, limits: RenderLimits | None = None) -> None:
        """Raises InvalidRequest with the contract's text when `source` is no template."""
        self._limits = limits or RenderLimits()
        if len(source) > self._limits.max_source_chars:
            raise encode_failure("the chat template is too long")
        self.source = source
        try:
            environment = _Environment()
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            raise encode_failure(f"invalid chat template syntax: {error}") from error
        self.wants_parts = not self._shows(_PROBE) and self._shows([{"type": "text", "text": _PROBE}])
        """Whether text is lost unless it comes as a list of parts, as with some media models."""

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt's text. Raises InvalidRequest when the template raises, or uses more than it may."""
        return self._rendered(variables, Budget(self._limits))

    def _rendered(self, variables: Mapping[str, Any], budget: Budget) -> str:
        pieces: list[str] = []
        try:
            context = self._template.new_context({**variables, **budget.variables()})
            for piece in self._template.root_render_func(context):
                budget.produce(piece)
                pieces.append(piece)
        except Exception as error:  # whatever a template can provoke is the template's or the request's fault
            raise encode_failure(str(error) or type(error).__name__) from error
        return "".join(pieces)

    def _shows(self, content: object) -> bool:
        messages = [{"role": "user", "content": content}]
        variables = {"messages": messages, "tools": None, "add_generation_prompt": True}
        limits = replace(self._limits, timeout_s=min(self._limits.timeout_s, _PROBE_TIMEOUT_S))
        try:
            return _PROBE in self._rendered(variables, Budget(limits))
        except InvalidRequest:
            return False


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja with the settings that template authors rely on, and bounds."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], cache_size=0)
        filters = cast("dict[str, Any]", self.filters)  # pyright: ignore[reportUnknownMemberType]
        filters |= {"tojson": _to_json, **bounds.FILTERS}
        variables = cast("dict[str, Any]", self.globals)  # pyright: ignore[reportUnknownMemberType]
        variables |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return bounds.Instrument().visit(super()._parse(source, name, filename))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = bounds.budget_of(context)
        bounds.check_operation(operator, left, right)
        budget.check_size(bounds.product_size(left, right))
        result = super().call_binop(context, operator, left, right)
        budget.check(result)
        return result

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template comes here."""
        budget = bounds.budget_of(__context)
        budget.step()
        # The sandbox wraps `str.format`.
        receiver = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)
        budget.check_call(getattr(__obj, "__name__", ""), receiver, args)
        budget.check(args)
        result = super().call(__context, __obj, *args, **kwargs)
        budget.check(result)
        return result


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it stands for its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own `tojson` escapes HTML and sorts keys; prompts want neither."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
