"""A tokenizer of the `tokenizers` library behind the `Tokenizer` protocol.

Special tokens in message content. Chat templates render one text, and the whole text is tokenised with special tokens
recognised; so a user who writes `<|im_end|>` ends his own turn in the model's eyes. Every widespread server does this,
and clients depend on it (prompts rendered elsewhere, few-shot transcripts in one message). Keeping to the convention
is deliberate: the prompt is not a security boundary here, and an application that needs one must strip such names from
what it forwards.

Leading spaces. Sentencepiece decoders drop the first space of a text because the encoder put one there. A generated
continuation never stands at the start of the text, so here a token always gives the same bytes (`▁Hello` is ` Hello`)
and the text of a sequence is the concatenation of its tokens' bytes, whatever the grouping.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tokenizers

from mindserve.text.spelling import Spelling, piece_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BareSpecials:
    """Special tokens that are ordinary letters (`sop`): recognised only in the prefix that starts every prompt."""

    prefix: str
    prefix_ids: tuple[int, ...]
    token_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What the files beside the vocabulary say."""

    spelling: Spelling
    chat_template: str | Mapping[str, str] | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    template_defaults: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """`enable_thinking` and `thinking` of tokenizer_config.json: what templates get when the request is silent."""
    adds_bos: bool = False
    """Put `bos_token` first when special tokens are wanted and the vocabulary's own post-processor does not."""
    adds_eos: bool = False
    bare_specials: BareSpecials | None = None


class FastTokenizer:
    """Implements `text.base.Tokenizer`. Immutable after construction, hence thread-safe."""

    def __init__(self, backend: tokenizers.Tokenizer, traits: Traits) -> None:
        self._backend = backend
        self._traits = traits
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(id_ for id_, token in added.items() if token.special)
        if traits.bare_specials is not None:
            self._special |= traits.bare_specials.token_ids
        self._bytes = _bytes_table(backend, traits.spelling)
        self._id_of = {text: id_ for id_, text in reversed(list(enumerate(self._bytes))) if text}
        self._id_of |= {token.content.encode("utf-8", "replace"): id_ for id_, token in added.items()}
        self._bos = self._named("bos_token")
        self._eos = self._named("eos_token")

    def _named(self, name: str) -> int | None:
        text = self._traits.special_tokens.get(name)
        return None if text is None else self._backend.token_to_id(text)

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        return self._traits.chat_template

    @property
    def special_tokens(self) -> Mapping[str, str]:
        return self._traits.special_tokens

    @property
    def template_defaults(self) -> Mapping[str, bool]:
        """Template variables that the weight files set (`enable_thinking`, `thinking`)."""
        return self._traits.template_defaults

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        bare = self._traits.bare_specials
        if bare is not None and text.startswith(bare.prefix):
            return [*bare.prefix_ids, *self._encode(text[len(bare.prefix) :], False)]
        ids = self._encode(text, add_special_tokens)
        return self._framed(ids) if add_special_tokens else ids

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # Lone surrogates (legal in JSON) have no UTF-8. The batch call lets other threads run meanwhile.
        clean = text.encode("utf-8", "replace").decode("utf-8")
        return self._backend.encode_batch_fast([clean], add_special_tokens=add_special_tokens)[0].ids

    def _framed(self, ids: list[int]) -> list[int]:
        if self._traits.adds_bos and self._bos is not None and ids[:1] != [self._bos]:
            ids = [self._bos, *ids]
        if self._traits.adds_eos and self._eos is not None and ids[-1:] != [self._eos]:
            ids = [*ids, self._eos]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def token_id(self, text: str) -> int | None:
        return self._id_of.get(text.encode("utf-8", "replace"))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        skipped = self._special if skip_special_tokens else frozenset[int]()
        return b"".join(self.token_bytes(i) for i in token_ids if i not in skipped).decode("utf-8", "replace")


def _bytes_table(backend: tokenizers.Tokenizer, spelling: Spelling) -> list[bytes]:
    """Bytes by token id; holes in the vocabulary stand for nothing."""
    vocab = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for piece, token_id in vocab.items():
        table[token_id] = piece_bytes(piece, spelling)
    for token_id, token in backend.get_added_tokens_decoder().items():
        # Sentencepiece vocabularies also add runs of spaces, spelled like the others.
        is_spelled = spelling is Spelling.METASPACE and not token.special
        table[token_id] = (
            piece_bytes(token.content, spelling) if is_spelled else token.content.encode("utf-8", "replace")
        )
    return table
