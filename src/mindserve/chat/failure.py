"""The contract's answer to a template that does not work."""

from typing import Final

from mindserve.errors import InvalidRequest

_MAX_ECHO_CHARS: Final = 200


def encode_failure(reason: str) -> InvalidRequest:
    """One short line, whatever the template said (contract: request.md 4.1)."""
    line = reason.strip().split("\n", 1)[0]
    return InvalidRequest(f"[Tokenizer] encode failed. {line[:_MAX_ECHO_CHARS]}", param="messages")
