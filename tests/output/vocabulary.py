"""A vocabulary for output tests: any pieces of bytes are tokens, some of them special."""

from collections.abc import Iterable, Mapping, Sequence


class PieceTokenizer:
    """Implements `text.base.Tokenizer` over an explicit list of pieces; `encode` takes the longest that fits."""

    def __init__(self, pieces: Iterable[str | bytes], *, special: Iterable[str] = ()) -> None:
        as_bytes = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self._special = {name.encode() for name in special}
        self._pieces = list(dict.fromkeys([*self._special, *as_bytes, *(bytes([byte]) for byte in range(256))]))
        self._ids = {piece: token_id for token_id, piece in enumerate(self._pieces)}
        self._longest = max(map(len, self._pieces))

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def chat_template(self) -> None:
        return None

    @property
    def special_tokens(self) -> Mapping[str, str]:
        return {}

    @property
    def template_defaults(self) -> Mapping[str, bool]:
        return {}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return self.encode_bytes(text.encode())

    def encode_bytes(self, data: bytes) -> list[int]:
        token_ids: list[int] = []
        while data:
            piece = next(data[:n] for n in range(self._longest, 0, -1) if data[:n] in self._ids)
            token_ids.append(self._ids[piece])
            data = data[len(piece) :]
        return token_ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def is_special(self, token_id: int) -> bool:
        return self.token_bytes(token_id) in self._special

    def token_id(self, text: str) -> int | None:
        return self._ids.get(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = [i for i in token_ids if not (skip_special_tokens and self.is_special(i))]
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
