"""GGUF blocks as `Quantised`, exactly. Layouts: ggml's `block_q4_0` and its siblings, little-endian.

A block of the simple formats is 32 columns. A super-block of the K formats is 256, with 6-bit or 8-bit scales of its
groups, themselves scaled.
"""

from collections.abc import Callable

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Packing
from numpy.typing import NDArray

from mindserve.engine.native.models.quantised import Quantised, in_chunks, pack_nibbles
from mindserve.engine.native.models.stored import StoredTensor

Bytes = NDArray[np.uint8]
"""`[rows, blocks, bytes]`"""
Floats = NDArray[np.float32]


def exact(tensor: StoredTensor) -> Quantised | None:
    """The blocks themselves, when they are of a kind that the graph can hold."""
    packing = tensor.packing
    unpack = UNPACKERS.get(packing) if packing is not None else None
    if packing is None or unpack is None:
        return None
    size = GGML_QUANT_SIZES[packing][1]
    return in_chunks(tensor, lambda part: unpack(part.data.view(np.uint8).reshape(part.shape[0], -1, size)))


def suits_integer_kernels(packing: Packing | None) -> bool:
    """Whether activations can be quantised against the exact blocks: whole zero points, groups of 32.

    The others (a minimum per group means a fractional zero point) run on float kernels, half as fast.
    """
    return packing in (Packing.Q8_0, Packing.Q4_0, Packing.Q5_0)


def _q8_0(blocks: Bytes) -> Quantised:
    """d, 32 x int8"""
    return _signed(blocks[..., 2:].view(np.int8), _half(blocks, 0))


def _q4_0(blocks: Bytes) -> Quantised:
    """d, 16 bytes of halves"""
    codes = _flat(pack_nibbles(_halves(blocks[..., 2:])))
    return Quantised(codes=codes, bits=4, scales=_half(blocks, 0), zeros=8)


def _q4_1(blocks: Bytes) -> Quantised:
    """d, m, 16 bytes of halves"""
    return _with_lows(_halves(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2), bits=4)


def _q5_0(blocks: Bytes) -> Quantised:
    """d, 32 fifth bits, 16 bytes of halves"""
    codes = _halves(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return _signed(codes.view(np.int8) - np.int8(16), _half(blocks, 0))


def _q5_1(blocks: Bytes) -> Quantised:
    """d, m, 32 fifth bits, 16 bytes of halves"""
    codes = _halves(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return _with_lows(codes, _half(blocks, 0), _half(blocks, 2), bits=8)


def _q4_k(blocks: Bytes) -> Quantised:
    """d, dmin, 12 bytes of scales, 128 bytes of halves (32 columns low, the next 32 high)"""
    scales, lows = _k_scales(blocks)
    codes = _halves(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    return _with_lows(_grouped(codes, 32), scales, lows, bits=4)


def _q5_k(blocks: Bytes) -> Quantised:
    """As q4_k, with 32 bytes of fifth bits (one bit plane per group) before the halves"""
    scales, lows = _k_scales(blocks)
    codes = _halves(blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32)).reshape(*blocks.shape[:2], 8, 32)
    planes = (blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    return _with_lows(_grouped(codes | planes << np.uint8(4), 32), scales, lows, bits=8)


def _q6_k(blocks: Bytes) -> Quantised:
    """128 bytes of low halves, 64 of upper two bits, 16 x int8 scales, d; groups of 16"""
    rows, count, _ = blocks.shape
    low = _halves(blocks[..., :128].reshape(rows, count, 2, 64)).reshape(rows, count, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (blocks[..., 128:192].reshape(rows, count, 2, 1, 32) >> shifts) & np.uint8(3)
    codes = (low | high << np.uint8(4)).view(np.int8) - np.int8(32)
    scales = _half(blocks, 208)[..., None].astype(np.float32) * blocks[..., 192:208].view(np.int8).astype(np.float32)
    return Quantised(codes=codes.reshape(rows, -1), bits=8, scales=scales.reshape(rows, -1))


UNPACKERS: dict[Packing, Callable[[Bytes], Quantised]] = {
    Packing.Q8_0: _q8_0,
    Packing.Q4_0: _q4_0,
    Packing.Q4_1: _q4_1,
    Packing.Q5_0: _q5_0,
    Packing.Q5_1: _q5_1,
    Packing.Q4_K: _q4_k,
    Packing.Q5_K: _q5_k,
    Packing.Q6_K: _q6_k,
}


def _signed(codes: NDArray[np.int8], scales: NDArray[np.float16]) -> Quantised:
    return Quantised(codes=codes.reshape(codes.shape[0], -1), bits=8, scales=scales)


def _with_lows(codes: Bytes, scales: NDArray[np.floating], lows: NDArray[np.floating], *, bits: int) -> Quantised:
    """value = code * scale + low. `codes` `[rows, groups, 32]`. A group of one value (scale 0) becomes code 0, zero -1,
    scale low."""
    is_flat = scales == 0
    wide, lows = scales.astype(np.float32), lows.astype(np.float32)
    codes = np.where(is_flat[..., None], np.uint8(0), codes)
    zeros = np.where(is_flat, np.float32(-1), -lows / np.where(is_flat, np.float32(1), wide))
    packed = pack_nibbles(codes) if bits == 4 else codes
    return Quantised(codes=_flat(packed), bits=bits, scales=np.where(is_flat, lows, wide), zeros=zeros)


def _half(blocks: Bytes, offset: int) -> NDArray[np.float16]:
    """The f16 at a byte offset of each block."""
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view(np.float16)[..., 0]


def _halves(packed: Bytes) -> Bytes:
    """All low halves, then all high ones: the order of the columns."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """32 bits, lowest first, each at the place of the fifth bit of its code."""
    return np.unpackbits(packed, axis=-1, bitorder="little") << np.uint8(4)


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    """`[rows, groups]` scales and lows of 8 groups per super-block, from 12 bytes at offset 4: 6 bits each, the upper
    two of the last four groups' kept in the spare bits of the first four's."""
    first, second, third = (blocks[..., start : start + 4] for start in (4, 8, 12))
    late_scales = (third & np.uint8(15)) | ((first >> np.uint8(6)) << np.uint8(4))
    late_lows = (third >> np.uint8(4)) | ((second >> np.uint8(6)) << np.uint8(4))
    scales = np.concatenate([first & np.uint8(63), late_scales], axis=-1).astype(np.float32)
    lows = np.concatenate([second & np.uint8(63), late_lows], axis=-1).astype(np.float32)
    scales *= _half(blocks, 0)[..., None].astype(np.float32)
    lows *= -_half(blocks, 2)[..., None].astype(np.float32)
    return scales.reshape(len(blocks), -1), lows.reshape(len(blocks), -1)


def _grouped(codes: Bytes, group: int) -> Bytes:
    return codes.reshape(len(codes), -1, group)


def _flat(codes: Bytes) -> Bytes:
    return codes.reshape(len(codes), -1)
