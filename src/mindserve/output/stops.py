"""Stop strings: found in the stream of text wherever they begin, with no more held back than may become one.

An Aho-Corasick automaton walks over every character once. Its state is the longest end of the text that begins some
stop string, so the state's depth is exactly what has to be held back.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(slots=True)
class _Node:
    depth: int
    children: "dict[str, _Node]" = field(default_factory=dict[str, "_Node"])
    fallback: "_Node | None" = None
    """The node of the longest proper end of this node's text; None at the root."""
    stop: str | None = None
    """The stop string that ends here; the first of the request's where several do."""
    order: int = 0


@lru_cache(maxsize=64)
def compile_stops(stops: tuple[str, ...]) -> _Node:
    """The automaton's root. Shared by the choices of a request; never changed after it is built."""
    root = _Node(depth=0)
    for order, stop in enumerate(stops):
        _insert(root, stop, order)
    _link(root)
    return root


def _insert(root: _Node, stop: str, order: int) -> None:
    node = root
    for char in stop:
        node = node.children.setdefault(char, _Node(depth=node.depth + 1))
    if node.stop is None:
        node.stop, node.order = stop, order


def _link(root: _Node) -> None:
    waiting = deque([root])
    while waiting:
        node = waiting.popleft()
        for char, child in node.children.items():
            child.fallback = _step(node.fallback, char, root) if node.fallback else root
            _inherit_stop(child, child.fallback)
            waiting.append(child)


def _inherit_stop(node: _Node, shorter: _Node) -> None:
    if shorter.stop is not None and (node.stop is None or shorter.order < node.order):
        node.stop, node.order = shorter.stop, shorter.order


def _step(node: _Node, char: str, root: _Node) -> _Node:
    while char not in node.children:
        if node.fallback is None:
            return root
        node = node.fallback
    return node.children[char]


class StopMatcher:
    """Watches one choice's text.

    The stop string that is complete first wins, among those complete at the same character the request's first: the
    result does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._root = compile_stops(tuple(stops))
        self._node = self._root
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found. What followed it is gone."""

    def feed(self, text: str) -> str:
        """The text that can no longer become part of a stop string; on a match, what precedes it."""
        node = self._node
        for end, char in enumerate(text, 1):
            node = _step(node, char, self._root)
            if node.stop is not None:
                return self._cut(self._held + text[:end], node.stop)
        self._node = node
        return self._hold_back(self._held + text)

    def flush(self) -> str:
        """What was held back, now that nothing follows."""
        held, self._held, self._node = self._held, "", self._root
        return held

    def _cut(self, text: str, stop: str) -> str:
        self.matched = stop
        self._held, self._node = "", self._root
        return text[: -len(stop)]

    def _hold_back(self, text: str) -> str:
        certain = len(text) - self._node.depth
        self._held = text[certain:]
        return text[:certain]
