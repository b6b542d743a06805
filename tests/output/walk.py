"""Random walks under a mask, and a small judge of JSON schemas."""

import random
from typing import Any

from mindserve.engine.base import TokenMask
from tests.output.vocabulary import PieceTokenizer

END = "<|end|>"
PIECES = [
    "word",
    "天气",
    "12",
    "true",
    "null",
    "{",
    "}",
    '{"',
    '"}',
    '": "',
    '", "',
    '"',
    "\n",
    ": ",
    ", ",
    "[]",
    "{}",
    "'",
    "\\",
    "</parameter>",
    "\n</parameter>",
    "</｜DSML｜parameter>",
    "<tool_call>",
    "</tool_call>",
    "✿FUNCTION✿:",
    "<think>",
    "</think>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁sep｜>",
    ">\n",
    ">{",
    '>"',
    "</",
    "think",
    "<｜DSML｜",
]
_CLOSERS = {b'"', b"}", b"]", b"'", b")", b"</parameter>", "</｜DSML｜parameter>".encode(), b'"}', END.encode()}


def make_tokenizer(*, without: tuple[str, ...] = (), special: tuple[str, ...] = ()) -> PieceTokenizer:
    """A vocabulary with tokens that span the seams of every format."""
    return PieceTokenizer([piece for piece in PIECES if piece not in without], special=[END, *special])


def ids_of(mask: TokenMask, vocab_size: int) -> set[int] | None:
    """What the mask allows; None: everything."""
    bits = mask.allowed()
    if bits is None:
        return None
    assert len(bits) == (vocab_size + 31) // 32
    return {i for i in range(vocab_size) if int(bits[i // 32]) >> (i % 32) & 1}


class Walk:
    """Follows a mask at random, leaning towards what closes things, until an end token."""

    def __init__(self, mask: TokenMask, tokenizer: PieceTokenizer, seed: int) -> None:
        self.mask = mask
        self.tokens: list[int] = []
        self.ends: list[int] = []
        """Lengths at which the mask allowed an end."""
        self._tokenizer = tokenizer
        self._rng = random.Random(seed)
        self._end = tokenizer.token_id(END)

    def run(self, limit: int = 1500) -> "Walk":
        for _ in range(limit):
            allowed = ids_of(self.mask, self._tokenizer.vocab_size)
            assert allowed, "a constrained walk is never free and never stuck"
            if self._end in allowed:
                self.ends.append(len(self.tokens))
                if len(allowed) == 1 or self._rng.random() < 0.6:
                    return self
            self.step(self._choose(allowed - {self._end}))
        raise AssertionError(f"no end: {self.text[:200]!r}")

    def step(self, token_id: int) -> None:
        self.mask.advance(token_id)
        self.tokens.append(token_id)

    def say(self, text: str) -> None:
        """Advance by a text of the caller's choice."""
        for token_id in self._tokenizer.encode(text):
            self.step(token_id)

    def _choose(self, allowed: set[int]) -> int:
        pieces = {i: self._tokenizer.token_bytes(i) for i in allowed}
        closers = [i for i, piece in pieces.items() if piece in _CLOSERS]
        if closers and self._rng.random() < 0.5:
            return self._rng.choice(sorted(closers))
        wordy = [i for i, piece in pieces.items() if len(piece) > 1 or 32 < piece[0] < 127]
        return self._rng.choice(sorted(wordy if wordy and self._rng.random() < 0.8 else allowed))

    @property
    def text(self) -> str:
        return self._tokenizer.decode(self.tokens, skip_special_tokens=False)

    def text_at(self, length: int) -> str:
        """The text of the first tokens."""
        return self._tokenizer.decode(self.tokens[:length], skip_special_tokens=False)


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is what the schema says, for the keywords that these tests use."""
    if "enum" in schema:
        return value in schema["enum"]
    if "anyOf" in schema:
        return any(fits(value, option) for option in schema["anyOf"])
    kinds = {
        "string": lambda: isinstance(value, str),
        "integer": lambda: isinstance(value, int) and not isinstance(value, bool),
        "number": lambda: isinstance(value, int | float) and not isinstance(value, bool),
        "boolean": lambda: isinstance(value, bool),
        "null": lambda: value is None,
        "array": lambda: isinstance(value, list) and all(fits(item, schema.get("items", {})) for item in value),
        "object": lambda: isinstance(value, dict) and _fits_object(value, schema),
    }
    return kinds[schema["type"]]() if "type" in schema else True


def _fits_object(value: dict[str, Any], schema: dict[str, Any]) -> bool:
    properties = schema.get("properties", {})
    if schema.get("additionalProperties") is False and not value.keys() <= properties.keys():
        return False
    known = all(fits(item, properties.get(key, {})) for key, item in value.items())
    return known and all(key in value for key in schema.get("required", []))
