"""How byte-level vocabularies cut text before merging, by the name that GGUF files give (`tokenizer.ggml.pre`)."""

from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """What a family does to text before its merges apply."""

    patterns: tuple[str, ...]
    """Each cuts what the one before it left: matches become pieces, and so do the gaps between them."""
    is_nfc: bool = False
    """Text is composed (Unicode NFC) first."""
    ignores_merges: bool = False
    """A piece that the vocabulary holds whole is taken whole."""
    adds_bos: bool = False
    """When the file itself says nothing."""

    def build(self) -> pre_tokenizers.PreTokenizer:
        """As a stage of the `tokenizers` library."""
        cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _words(digits: str, *, letters: str = r"\p{L}") -> str:
    """The pattern that came with GPT-4; families differ in what a letter is and how many digits stay together."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_TAIL}"


def _cased(digits: str, *, suffix: str = "") -> str:
    """As `_words`, but a lower-case run ends a word."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    start = r"[^\r\n\p{L}\p{N}]?"
    words = f"{start}{upper}*{lower}+{suffix}|{start}{upper}+{lower}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"


_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CJK: Final = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK3: Final = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _TAIL,
)
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _CJK,
    r"\p{N}",
)
_DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")
_UNNAMED: Final = (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
_FALCON: Final = (r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")

_GPT2_LIKE: Final = PreTokenizer(patterns=(_GPT2,))
_QWEN2: Final = PreTokenizer(patterns=(_words(r"\p{N}"),), is_nfc=True)
_QWEN_DISTILLED: Final = PreTokenizer(patterns=(_words(r"\p{N}"),))
_LLAMA3: Final = PreTokenizer(patterns=(_words(r"\p{N}{1,3}"),), ignores_merges=True, adds_bos=True)
_GLM: Final = PreTokenizer(patterns=(_words(r"\p{N}{1,3}"),))
_SINGLE_DIGITS: Final = PreTokenizer(patterns=(r"\p{N}", _GPT2))
_O200K: Final = PreTokenizer(patterns=(_cased(r"\p{N}{1,3}", suffix=_CONTRACTIONS + "?"),))

_BY_NAME: Final = {
    "default": PreTokenizer(patterns=_UNNAMED),
    "gpt-2": _GPT2_LIKE,
    "phi-2": _GPT2_LIKE,
    "mpt": _GPT2_LIKE,
    "olmo": _GPT2_LIKE,
    "jais": _GPT2_LIKE,
    "trillion": _GPT2_LIKE,
    "granite-docling": _GPT2_LIKE,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "exaone": _SINGLE_DIGITS,
    "minerva-7b": _SINGLE_DIGITS,
    "falcon": PreTokenizer(patterns=_FALCON),
    "qwen2": _QWEN2,
    "stablelm2": _QWEN2,
    "megrez": _QWEN2,
    "deepseek-r1-qwen": _QWEN_DISTILLED,
    "hunyuan": _QWEN_DISTILLED,
    "qwen35": PreTokenizer(patterns=(_words(r"\p{N}", letters=r"\p{L}\p{M}"),)),
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "lfm2": _LLAMA3,
    "pixtral": _LLAMA3,
    "dbrx": PreTokenizer(patterns=_LLAMA3.patterns),
    "smaug-bpe": PreTokenizer(patterns=_LLAMA3.patterns),
    "chatglm-bpe": _GLM,
    "glm4": PreTokenizer(patterns=_GLM.patterns, ignores_merges=True),
    "tekken": PreTokenizer(patterns=(_cased(r"\p{N}"),), ignores_merges=True, adds_bos=True),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "deepseek-llm": PreTokenizer(patterns=_DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(patterns=_DEEPSEEK_CODER),
    "deepseek-v3": PreTokenizer(patterns=_DEEPSEEK3),
    "hunyuan-dense": PreTokenizer(patterns=_DEEPSEEK3),
}


def find_pretokenizer(name: str) -> PreTokenizer | None:
    """The pre-tokenizer that GGUF files call `name`."""
    return _BY_NAME.get(name)
