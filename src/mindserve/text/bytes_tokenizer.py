"""A tokenizer without weights: one token per byte, and a few special tokens. The scripted engine runs on it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

CHATML_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINKING_TOKENS: Final = ("<think>", "</think>")

CHATML_TEMPLATE: Final = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
{{- '\\n</tools>\\n\\nFor each call return a json object with function name and arguments within XML tags:\\n' }}
{{- '<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if not (loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
{{- '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""ChatML with Hermes-style tools."""


class ByteTokenizer:
    """Implements `text.base.Tokenizer`: ids 0 to 255 are bytes, special tokens follow in the given order."""

    def __init__(
        self,
        *,
        special: Sequence[str] = CHATML_TOKENS,
        markers: Sequence[str] = (),
        chat_template: str | None = CHATML_TEMPLATE,
        eos_token: str = "<|im_end|>",
    ) -> None:
        """`markers` are single tokens that `skip_special_tokens` does not leave out (`<think>`)."""
        self._names = (*special, *markers)
        self._special = frozenset(range(256, 256 + len(special)))
        self._id_of = {name: 256 + i for i, name in enumerate(self._names)}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._chat_template = chat_template
        self._eos_token = eos_token

    @property
    def vocab_size(self) -> int:
        return 256 + len(self._names)

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    @property
    def special_tokens(self) -> Mapping[str, str]:
        return {"eos_token": self._eos_token}

    @property
    def template_defaults(self) -> Mapping[str, bool]:
        return {}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """There is nothing to add: ChatML has no token that starts a text."""
        return list(self._ids(text))

    def _ids(self, text: str) -> Iterator[int]:
        at = 0
        for match in self._pattern.finditer(text):
            yield from text[at : match.start()].encode("utf-8", "replace")
            yield self._id_of[match[0]]
            at = match.end()
        yield from text[at:].encode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < 256:
            return bytes([token_id])
        place = token_id - 256
        return self._names[place].encode() if 0 <= place < len(self._names) else b""

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def token_id(self, text: str) -> int | None:
        data = text.encode("utf-8", "replace")
        return data[0] if len(data) == 1 else self._id_of.get(text)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        skipped = self._special if skip_special_tokens else frozenset[int]()
        return b"".join(self.token_bytes(i) for i in token_ids if i not in skipped).decode("utf-8", "replace")
