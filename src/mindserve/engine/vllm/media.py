"""Media of a prompt as vLLM takes them: one placeholder each, which it repeats itself, and what was decoded."""

from collections.abc import Mapping, Sequence

import numpy as np

from mindserve.engine.base import DecodedMedia, MediaInput, MediaKind
from mindserve.errors import InvalidRequest


def collapsed(token_ids: Sequence[int], media: Sequence[MediaInput]) -> list[int]:
    """The prompt with a single placeholder in the place of each run of them."""
    kept: list[int] = []
    at = 0
    for item in media:
        kept += token_ids[at : item.offset + 1]
        at = item.offset + item.length
    return [*kept, *token_ids[at:]]


def media_data(media: Sequence[MediaInput]) -> Mapping[str, list[object]]:
    """`multi_modal_data` of a prompt. Raises InvalidRequest for media that were not kept as they were decoded."""
    data: dict[str, list[object]] = {}
    for item in media:
        if item.decoded is None:
            raise InvalidRequest(f"The {item.kind} was not kept for vLLM.", param="messages")
        data.setdefault(item.kind, []).append(_item(item.kind, item.decoded))
    return data


def media_options(media: Sequence[MediaInput]) -> Mapping[str, object]:
    """`mm_processor_kwargs` of a prompt: pixels have their final size, which the number of placeholders follows."""
    return {} if all(item.kind is MediaKind.AUDIO for item in media) else {"do_resize": False}


def media_digests(media: Sequence[MediaInput]) -> Mapping[str, list[str]]:
    """`multi_modal_uuids` of a prompt: spares vLLM hashing the content again."""
    digests: dict[str, list[str]] = {}
    for item in media:
        digests.setdefault(item.kind, []).append(item.digest.hex())
    return digests


def _item(kind: MediaKind, decoded: DecodedMedia) -> object:
    if kind is MediaKind.AUDIO:
        return decoded.data, decoded.rate
    if kind is MediaKind.VIDEO:
        return decoded.data, _video_facts(len(decoded.data), decoded.rate)
    return np.ascontiguousarray(decoded.data.transpose(2, 0, 1))  # vLLM wants the colours first


def _video_facts(frames: int, rate: float) -> Mapping[str, object]:
    """All frames count: they were sampled before."""
    return {
        "fps": rate,
        "duration": frames / rate if rate else 0.0,
        "total_num_frames": frames,
        "frames_indices": list(range(frames)),
        "video_backend": "opencv",
        "do_sample_frames": False,
    }
