"""Keeps one rendering within bounds: time, text sizes, and the few operations that make much out of little.

A template comes with the weights, or in a request where the configuration allows it. Jinja's sandbox keeps it from the
process; these bounds keep it from the processor and the memory.
"""

import re
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

_MAX_REPEATED: Final = 1_000_000
_MAX_WIDTH: Final = 10_000
_MAX_EXPONENT: Final = 64
_WIDE_FORMAT: Final = re.compile(r"\d{5}")
_BUDGET_KEY: Final = " budget"
"""In the context, where no template can spell it."""
_GUARDED_FILTERS: Final = frozenset({"center", "indent", "wordwrap", "replace", "format", "batch", "slice"})
_WIDENING: Final = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """What a template may use."""

    max_source_chars: int = 1 << 20
    max_output_chars: int = 1 << 25
    """Of the prompt, and of any text or list made on the way."""
    timeout_s: float = 10.0


class Budget:
    """What is left for one rendering. Raises SecurityError when nothing is."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._deadline = time.monotonic() + limits.timeout_s
        self._chars = 0

    def variables(self) -> dict[str, Any]:
        """What puts the budget into a rendering's context."""
        return {_BUDGET_KEY: self}

    def step(self) -> None:
        """Each turn of a loop and each call is one."""
        if time.monotonic() > self._deadline:
            raise SecurityError("the chat template takes too long")

    def produce(self, text: str) -> None:
        """Count a piece of the prompt."""
        self._chars += len(text)
        self.check_size(self._chars)
        self.step()

    def check_size(self, size: int) -> None:
        """Refuse a text or list of `size`."""
        if size > self._limits.max_output_chars:
            raise SecurityError("the chat template makes too long a text")


def budget_of(context: Context) -> Budget:
    """The budget of the rendering that `context` belongs to."""
    return context.parent[_BUDGET_KEY]


@pass_context
def count_step(context: Context, value: object) -> object:
    """Filter put into loop bodies."""
    budget_of(context).step()
    return value


@pass_context
def check_size(context: Context, value: Any) -> Any:
    """Filter put around sums and concatenations."""
    if isinstance(value, Sized):
        budget_of(context).check_size(len(value))
    return value


@pass_context
def guard_filter(context: Context, value: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Filter put before another one, with that one's name and arguments."""
    check_call(name, value, (*args, *kwargs.values()), budget_of(context))
    return value


FILTERS: Final[dict[str, Callable[..., Any]]] = {" step": count_step, " size": check_size, " guard": guard_filter}
"""By names that no template can spell."""


class Instrument(NodeTransformer):
    """Puts these filters where a template could run away."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        step = nodes.Filter(nodes.Const(None), " step", [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        return nodes.Filter(self._inside(node), " size", [], [], None, None, lineno=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return nodes.Filter(self._inside(node), " size", [], [], None, None, lineno=node.lineno)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.name in _GUARDED_FILTERS:
            args = [nodes.Const(node.name), *node.args]
            rest = (node.kwargs, node.dyn_args, node.dyn_kwargs)
            node.node = nodes.Filter(node.node, " guard", args, *rest, lineno=node.lineno)
        return node

    def _inside(self, node: nodes.Expr) -> nodes.Expr:
        self.generic_visit(node)
        return node


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse products, powers and formats that are large out of all proportion."""
    if operator == "**" and isinstance(right, int | float) and abs(right) > _MAX_EXPONENT:
        raise SecurityError("the chat template raises to too high a power")
    if operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
        raise SecurityError("the chat template formats too wide a text")
    if operator == "*":
        _check_product(left, right)


def _check_product(left: Any, right: Any) -> None:
    for text, count in ((left, right), (right, left)):
        if isinstance(text, str | list | tuple) and isinstance(count, int):
            size = len(text)  # pyright: ignore[reportUnknownArgumentType]
            if size * count > _MAX_REPEATED:
                raise SecurityError("the chat template repeats a text too often")


def check_call(name: str, value: Any, args: tuple[Any, ...], budget: Budget) -> None:
    """Refuse a text method or filter that would make a huge text."""
    budget.step()
    if name in _GUARDED_FILTERS | _WIDENING and any(isinstance(arg, int) and arg > _MAX_WIDTH for arg in args):
        raise SecurityError("the chat template makes too wide a text")
    if not isinstance(value, str):
        return
    if name == "replace" and len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        budget.check_size(len(value) + value.count(args[0]) * len(args[1]))
    if name == "format" and _WIDE_FORMAT.search(value):
        raise SecurityError("the chat template formats too wide a text")
