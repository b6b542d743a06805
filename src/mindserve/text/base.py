"""What the rest of the house asks of a tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """A model's vocabulary. Thread-safe; ids at or beyond `vocab_size` decode to nothing."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        ...

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        """The Jinja source that came with the tokenizer; several named ones; or None."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """`bos_token`, `eos_token`, ... as templates expect them."""
        ...

    @property
    def template_defaults(self) -> Mapping[str, bool]:
        """Template variables that the weight files set (`enable_thinking`, `thinking`); a request's own win."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; special tokens written in the text become their ids."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; a special token's are its name's (`<|im_end|>`)."""
        ...

    def is_special(self, token_id: int) -> bool:
        """Whether `skip_special_tokens` leaves the token out."""
        ...

    def token_id(self, text: str) -> int | None:
        """The single token that is exactly `text`, if the vocabulary has one."""
        ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of the tokens; broken bytes become U+FFFD."""
        ...
