"""Tokens to text, one at a time: the first stage of the output."""

from codecs import utf_8_decode

from mindserve.text.base import Tokenizer


class IncrementalDecoder:
    """Turns token ids into text as soon as the text is certain.

    At most three bytes of an unfinished character are held back. All pieces together are exactly what decoding all
    bytes at once would give: a broken sequence becomes U+FFFD where it turns out to be broken.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held = b""
        self._is_first = True

    def feed(self, token_id: int) -> str:
        """The text that this token completes, often all of its own; "" while a character is unfinished."""
        data = self._tokenizer.token_bytes(token_id)
        if self._is_first and data:
            data = self._without_dummy_space(token_id, data)
            self._is_first = False
        data = self._held + data
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def flush(self) -> str:
        """U+FFFD if an unfinished character was held back, else ""."""
        text, self._held = self._held.decode("utf-8", "replace"), b""
        return text

    def _without_dummy_space(self, token_id: int, data: bytes) -> bytes:
        # Sentencepiece vocabularies mark word starts with a space that their decoders drop at the start of a text.
        if data[:1] == b" " and not self._tokenizer.decode([token_id], skip_special_tokens=False).startswith(" "):
            return data[1:]
        return data
