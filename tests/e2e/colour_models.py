"""A tiny model, written by hand, that names the colour of a picture and the pitch of a sound.

Every phrase has a dimension of its own in the embedding, and the output row of what follows it looks there. One layer
of attention carries flags from the media's tokens to the last one: "this is a picture" with its mean red, green and
blue, "this is a sound" with its low and high halves. The towers compute these from patches and spectrograms. What comes
out is a GGUF text model with its projector beside it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.floating[Any]]

NOTHING = "There is nothing to see or hear."
SEEN, HEARD = "The picture is mostly", "The tone is"
COLOURS = (" red.", " green.", " blue.", " white.", " black.")
PITCHES = (" low.", " high.")
PHRASES: tuple[str, ...] = (NOTHING, SEEN, HEARD, *COLOURS, *PITCHES)
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|AUDIO|>",
)
TEMPLATE = """
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}
{%- if part.type == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif part.type == 'video' %}{{ '<|vision_start|><|video_pad|><|vision_end|>' }}
{%- elif part.type == 'audio' %}{{ '<|audio_bos|><|AUDIO|><|audio_eos|>' }}
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

HIDDEN, HEADS, HEAD_DIM, FEED_FORWARD = 64, 4, 16, 32
# Dimensions: the first twelve are the newline's and the phrases', in this order; then come
ONE, FILLER, IS_PICTURE, IS_SOUND, RED, LOW = 16, 17, 20, 21, 22, 25
"""RED, green and blue, LOW and high follow each other."""
SAW_PICTURE, SAW_SOUND, SAW_RED, SAW_LOW = 30, 31, 32, 35
"""The same flags after attention."""
SIZE = 10.0
"""Of a token's own dimension, which makes all tokens about equally long."""
SLOWEST = HEAD_DIM // 2 - 1
"""The rotating pair that hardly turns."""
PATCH, TOWER, TOWER_INNER, MEL_BINS, SOUND_POSITIONS = 14, 32, 64, 128, 1500
HALVING_BIN = 48


def write_colour_model(folder: Path) -> Path:
    """The directory to serve."""
    folder.mkdir(parents=True)
    _write_text_model(folder / "colours.gguf")
    _write_projector(folder / "mmproj-colours.gguf")
    return folder


def _byte_tokens() -> list[str]:
    """As byte-level vocabularies spell the bytes: printable ones as themselves, the others as letters from U+0100."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def _vocabulary() -> list[str]:
    letters = _byte_tokens()
    phrases = ["".join(letters[byte] for byte in phrase.encode()) for phrase in PHRASES]
    return [*letters, "ĠĠ", *phrases, *SPECIAL]


def _write_text_model(path: Path) -> None:
    tokens = _vocabulary()
    writer = gguf.GGUFWriter(path, "qwen2vl")
    writer.add_block_count(1)
    writer.add_context_length(32768)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_dimension_sections([2, 3, 3, 0])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIAL)) + [gguf.TokenType.CONTROL] * len(SPECIAL)
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ Ġ"])  # a vocabulary of this kind has at least one
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template(TEMPLATE)
    _finish(writer, _text_tensors(tokens))


def _text_tensors(tokens: Sequence[str]) -> dict[str, Matrix]:
    attention = _Attention()
    attention.watch(0, IS_PICTURE, [(IS_PICTURE, SAW_PICTURE), *((RED + i, SAW_RED + i) for i in range(3))])
    attention.watch(1, IS_SOUND, [(IS_SOUND, SAW_SOUND), *((LOW + i, SAW_LOW + i) for i in range(2))])
    one, bias = np.ones(HIDDEN, np.float32), np.zeros(HEADS * HEAD_DIM, np.float32)
    return {
        "token_embd.weight": _embeddings(tokens),
        "output.weight": _output_rows(tokens),
        "output_norm.weight": one,
        "blk.0.attn_norm.weight": one,
        "blk.0.ffn_norm.weight": one,
        "blk.0.attn_q.weight": attention.query,
        "blk.0.attn_k.weight": attention.key,
        "blk.0.attn_v.weight": attention.value,
        "blk.0.attn_output.weight": attention.output,
        **{f"blk.0.attn_{name}.bias": bias for name in "qkv"},
        "blk.0.ffn_gate.weight": np.zeros((FEED_FORWARD, HIDDEN), np.float32),
        "blk.0.ffn_up.weight": np.zeros((FEED_FORWARD, HIDDEN), np.float32),
        "blk.0.ffn_down.weight": np.zeros((HIDDEN, FEED_FORWARD), np.float32),
    }


class _Attention:
    """Heads that look at tokens with a marker, if there are any."""

    def __init__(self) -> None:
        size = HEADS * HEAD_DIM
        self.query, self.key, self.value = (np.zeros((size, HIDDEN), np.float32) for _ in range(3))
        self.output = np.zeros((HIDDEN, size), np.float32)

    def watch(self, head: int, marker: int, carried: list[tuple[int, int]]) -> None:
        """Carry flags of those tokens (from, to)."""
        first = head * HEAD_DIM
        self.query[first + SLOWEST, ONE] = 40
        self.key[first + SLOWEST, marker] = 2
        for place, (source, target) in enumerate(carried):
            self.value[first + place, source] = 1
            self.output[target, first + place] = 1


def _embeddings(tokens: Sequence[str]) -> Matrix:
    rows = np.zeros((len(tokens), HIDDEN), np.float32)
    rows[:, ONE], rows[:, FILLER] = 1, SIZE
    for dimension, token in enumerate(_speaking(tokens)):
        rows[token, FILLER], rows[token, dimension] = 0, SIZE
    return rows


def _speaking(tokens: Sequence[str]) -> list[int]:
    """The newline, after which an answer begins, and the phrases."""
    newline, first_phrase = 10, 257
    assert tokens[newline] == "Ċ"
    return [newline, *range(first_phrase, first_phrase + len(PHRASES))]


def _output_rows(tokens: Sequence[str]) -> Matrix:
    """Each row: after what its token follows, and what speaks for it."""
    rows = np.zeros((len(tokens), HIDDEN), np.float32)
    dimension = {phrase: place for place, phrase in enumerate(("\n", *PHRASES))}
    token = dict(zip(("\n", *PHRASES), _speaking(tokens), strict=True))
    for phrase, evidence in {NOTHING: {}, SEEN: {SAW_PICTURE: 16.0}, HEARD: {SAW_SOUND: 16.0}}.items():
        rows[token[phrase], dimension["\n"]] = SIZE
        for flag, weight in evidence.items():
            rows[token[phrase], [flag, ONE]] = weight, -12
    for i, colour in enumerate(COLOURS[:3]):
        rows[token[colour], SAW_RED : SAW_RED + 3] = -6
        rows[token[colour], SAW_RED + i] = 12
    rows[token[" white."], SAW_RED : SAW_RED + 3] = 4
    rows[token[" black."], ONE] = 16
    for i, pitch in enumerate(PITCHES):
        rows[token[pitch], [SAW_LOW + i, SAW_LOW + 1 - i]] = 8, -8
    for before, phrases in ((SEEN, COLOURS), (HEARD, PITCHES)):
        for phrase in phrases:
            rows[token[phrase], dimension[before]] = SIZE
    for phrase in (NOTHING, *COLOURS, *PITCHES):
        rows[tokens.index("<|im_end|>"), dimension[phrase]] = SIZE
    return rows


def _write_projector(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.has_audio_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    for tower, kind in (("vision", "qwen2vl_merger"), ("audio", "qwen2a")):
        writer.add_string(f"clip.{tower}.projector_type", kind)
        sizes = {"embedding_length": TOWER, "feed_forward_length": TOWER_INNER, "block_count": 1}
        for name, size in {**sizes, "attention.head_count": 2, "projection_dim": HIDDEN}.items():
            writer.add_uint32(f"clip.{tower}.{name}", size)
        writer.add_float32(f"clip.{tower}.attention.layer_norm_epsilon", 1e-6)
    writer.add_uint32("clip.vision.patch_size", PATCH)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    writer.add_uint32("clip.audio.num_mel_bins", MEL_BINS)
    _finish(writer, _vision_tensors() | _audio_tensors())


def _idle_block(prefix: str) -> dict[str, Matrix]:
    """A layer that adds nothing."""
    tensors: dict[str, Matrix] = {}
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        tensors |= {f"{prefix}{name}.weight": np.zeros((TOWER, TOWER)), f"{prefix}{name}.bias": np.zeros(TOWER)}
    for name in ("ln1", "ln2"):
        tensors |= {f"{prefix}{name}.weight": np.ones(TOWER), f"{prefix}{name}.bias": np.zeros(TOWER)}
    for name, rows, columns in (("ffn_up", TOWER_INNER, TOWER), ("ffn_down", TOWER, TOWER_INNER)):
        tensors |= {f"{prefix}{name}.weight": np.zeros((rows, columns)), f"{prefix}{name}.bias": np.zeros(rows)}
    return tensors


def _vision_tensors() -> dict[str, Matrix]:
    """Mean colours of patches, -1 to 1, then of four patches, 0 to 4."""
    kernel = np.zeros((TOWER, 3, PATCH, PATCH))
    first, second, bias = np.zeros((4 * TOWER, 4 * TOWER)), np.zeros((HIDDEN, 4 * TOWER)), np.zeros(4 * TOWER)
    for channel in range(3):
        kernel[channel, channel] = 1 / (2 * PATCH * PATCH)
        first[channel, channel::TOWER] = 5 / 4
        bias[channel] = 5  # so far above 0 that the activation changes nothing
        second[RED + channel, channel] = 0.4
    return {
        "v.patch_embd.weight": kernel,
        "v.patch_embd.weight.1": kernel,
        **_idle_block("v.blk.0."),
        "mm.0.weight": first,
        "mm.0.bias": bias,
        "mm.2.weight": second,
        "mm.2.bias": _marked(IS_PICTURE),
    }


def _audio_tensors() -> dict[str, Matrix]:
    """How much louder the low bins are than the high ones, and the opposite."""
    hears, passes_on = np.zeros((TOWER, MEL_BINS, 3)), np.zeros((TOWER, TOWER, 3))
    projection = np.zeros((HIDDEN, TOWER))
    for unit, sign in ((0, 60), (1, -60)):
        hears[unit, :HALVING_BIN, 1] = sign / HALVING_BIN
        hears[unit, HALVING_BIN:, 1] = -sign / (MEL_BINS - HALVING_BIN)
        passes_on[unit, unit, 1] = 1
        projection[LOW + unit, unit] = 0.4
    return {
        "a.conv1d.1.weight": hears,
        "a.conv1d.1.bias": np.zeros((TOWER, 1)),
        "a.conv1d.2.weight": passes_on,
        "a.conv1d.2.bias": np.zeros((TOWER, 1)),
        "a.position_embd.weight": np.zeros((SOUND_POSITIONS, TOWER)),
        **_idle_block("a.blk.0."),
        "mm.a.fc.weight": projection,
        "mm.a.fc.bias": _marked(IS_SOUND),
    }


def _marked(flag: int) -> Matrix:
    row = np.zeros(HIDDEN)
    row[[ONE, FILLER, flag]] = 1, SIZE, 4
    return row


def _finish(writer: gguf.GGUFWriter, tensors: dict[str, Matrix]) -> None:
    for name, values in tensors.items():
        is_matrix = values.ndim > 1 and not name.endswith(".bias")
        writer.add_tensor(name, np.ascontiguousarray(values, np.float16 if is_matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
