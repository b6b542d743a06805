"""The special tokens of ChatGLM3, two of which are ordinary letters."""

from collections.abc import Sequence
from typing import Final

from mindserve.text.fast import BareSpecials

SPECIAL_TOKENS: Final = (
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "sop",
    "eop",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)
"""In the order of their ids, which follow the sentencepiece model's."""

BARE_WORDS: Final = frozenset({"sop", "eop"})
"""Special tokens that must not be recognised inside text: philosophy, people."""


def find_bare_specials(pieces: Sequence[str]) -> BareSpecials | None:
    """Where the bare words are, when the vocabulary holds ChatGLM3's special tokens."""
    places = {text: i for i, text in enumerate(pieces) if text in SPECIAL_TOKENS}
    if not {"[gMASK]", *BARE_WORDS} <= places.keys():
        return None
    return BareSpecials(
        prefix="[gMASK]sop",
        prefix_ids=(places["[gMASK]"], places["sop"]),
        token_ids=frozenset(places[word] for word in BARE_WORDS),
    )
