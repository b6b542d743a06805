"""Keeps one rendering within bounds: time, sizes, and the operations that make much out of little.

A template comes with the weights, or in a request where the configuration allows it. Jinja's sandbox keeps it from the
process; these bounds keep it from the processor and the memory. The template's syntax tree gets checks where it could
run away: each turn of a loop and each call is a step against the clock, and whatever an expression makes is weighed.
"""

import re
import time
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, Final, cast

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

_MAX_WIDTH: Final = 10_000
_MAX_EXPONENT: Final = 64
_SLOT_WEIGHT: Final = 32
"""What an element of a list or mapping weighs besides its own characters."""
_WIDE_FORMAT: Final = re.compile(r"\d{5}")
_BUDGET_KEY: Final = " budget"
"""In the context, where no template can spell it."""
_WIDENING: Final = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap", "batch", "slice"}
)
_MULTIPLYING: Final = frozenset({"replace", "indent", "wordwrap", "join", "expandtabs"})
_GUARDED: Final = _WIDENING | _MULTIPLYING | {"format"}
"""Filters and methods whose arguments are looked at before they run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """What a template may use."""

    max_source_chars: int = 1 << 20
    max_output_chars: int = 1 << 25
    """Of the prompt, and of any text or list made on the way."""
    timeout_s: float = 10.0


class Budget:
    """What is left for one rendering. Its methods raise SecurityError when nothing is."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._deadline = time.monotonic() + limits.timeout_s
        self._chars = 0
        self._weights: dict[int, tuple[object, int]] = {}
        """Of containers by identity; each is kept alive so that its identity stays its own."""

    def variables(self) -> dict[str, Any]:
        """What puts the budget into a rendering's context."""
        return {_BUDGET_KEY: self}

    def step(self) -> None:
        """Count a turn of a loop or a call."""
        if time.monotonic() > self._deadline:
            raise SecurityError("the chat template takes too long")

    def produce(self, text: str) -> None:
        """Count a piece of the prompt."""
        self._chars += len(text)
        self.check_size(self._chars)
        self.step()

    def check_size(self, size: int) -> None:
        """Refuse a text or container of `size`."""
        if size > self._limits.max_output_chars:
            raise SecurityError("the chat template makes too long a text")

    def check(self, value: object) -> None:
        """Refuse what would be too long when written out."""
        self.check_size(self._weigh(value))

    def _weigh(self, value: object) -> int:
        """Characters and elements, counted as often as they would be written out."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, list | tuple | dict):
            return 1
        known = self._weights.get(id(cast("object", value)))
        if known is not None:
            return known[1]
        children = value.values() if isinstance(value, dict) else value  # pyright: ignore[reportUnknownVariableType]
        weight = sum(_SLOT_WEIGHT + self._weigh(child) for child in cast("list[object]", children))
        self._weights[id(cast("object", value))] = (cast("object", value), weight)
        return weight

    def check_call(self, name: str, value: Any, args: tuple[Any, ...]) -> None:
        """Refuse a filter or method (`name` of `value`) that would make a huge text."""
        if name in _WIDENING and any(isinstance(arg, int) and arg > _MAX_WIDTH for arg in args):
            raise SecurityError("the chat template makes too wide a text")
        if name == "format" and isinstance(value, str) and _WIDE_FORMAT.search(value):
            raise SecurityError("the chat template formats too wide a text")
        if name in _MULTIPLYING and isinstance(value, Sized):
            self.check_size(len(value) + _growth(name, value, args))


def budget_of(context: Context) -> Budget:
    """The budget of the rendering that `context` belongs to."""
    return context.parent[_BUDGET_KEY]


def _growth(name: str, value: Sized, args: tuple[Any, ...]) -> int:
    """At most how much longer the result is than `value`."""
    if name == "replace" and isinstance(value, str) and len(args) >= 2:
        return value.count(str(args[0])) * len(str(args[1]))
    if name == "join" and isinstance(value, str):
        return len(value) * (len(args[0]) if args and isinstance(args[0], Sized) else 1)
    if isinstance(value, str):
        width = max((arg if isinstance(arg, int) else len(str(arg)) for arg in args), default=0)
        return (1 + value.count("\n") + value.count("\t")) * width if name != "wordwrap" else len(value) * width
    return len(value) * max((len(str(arg)) for arg in args), default=0)


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse powers and formats that are large out of all proportion."""
    if operator == "**" and isinstance(right, int | float) and abs(right) > _MAX_EXPONENT:
        raise SecurityError("the chat template raises to too high a power")
    if operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
        raise SecurityError("the chat template formats too wide a text")


def product_size(left: Any, right: Any) -> int:
    """Length of a repeated text or list; 0 for a product of numbers."""
    for value, count in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(count, int):
            return len(cast("Sized", value)) * count
    return 0


@pass_context
def _count_step(context: Context, value: object) -> object:
    budget_of(context).step()
    return value


@pass_context
def _check(context: Context, value: object) -> object:
    budget_of(context).check(value)
    return value


@pass_context
def _guard(context: Context, value: object, name: str, *args: Any, **kwargs: Any) -> object:
    budget_of(context).check_call(name, value, (*args, *kwargs.values()))
    return value


FILTERS: Final[dict[str, Callable[..., Any]]] = {" step": _count_step, " check": _check, " guard": _guard}
"""The checks as filters, by names that no template can spell."""


class Instrument(NodeTransformer):
    """Puts the checks into a template's syntax tree. Calls and products are checked by the environment."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        step = nodes.Filter(nodes.Const(None), " step", [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:
        return self._checked(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return self._checked(node)

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:
        self.generic_visit(node)
        node.node = nodes.Filter(node.node, " check", [], [], None, None, lineno=node.lineno)
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = nodes.Filter(node.filter, " check", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        checked = self._checked(node)
        if node.name in _GUARDED:
            args: list[nodes.Expr] = [nodes.Const(node.name), *node.args]
            rest = (node.kwargs, node.dyn_args, node.dyn_kwargs)
            node.node = nodes.Filter(node.node, " guard", args, *rest, lineno=node.lineno)
        return checked

    def _checked(self, node: nodes.Expr) -> nodes.Filter:
        self.generic_visit(node)
        return nodes.Filter(node, " check", [], [], None, None, lineno=node.lineno)
