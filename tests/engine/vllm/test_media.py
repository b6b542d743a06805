"""Media on their way to vLLM."""

import numpy as np
import pytest

from mindserve.engine.base import DecodedMedia, MediaInput, MediaKind
from mindserve.engine.vllm.media import collapsed, media_data, media_digests, media_options
from mindserve.errors import InvalidRequest


def item(kind: MediaKind, offset: int, length: int, data: np.ndarray | None = None, rate: float = 0.0) -> MediaInput:
    decoded = None if data is None else DecodedMedia(data=data, rate=rate)
    return MediaInput(kind=kind, offset=offset, length=length, features={}, digest=bytes([offset]), decoded=decoded)


def test_each_run_of_placeholders_becomes_one() -> None:
    media = [item(MediaKind.IMAGE, 2, 3), item(MediaKind.VIDEO, 5, 2), item(MediaKind.IMAGE, 8, 1)]
    assert collapsed([1, 2, 7, 7, 7, 9, 9, 3, 7, 4], media) == [1, 2, 7, 9, 3, 7, 4]
    assert collapsed([1, 2, 3], []) == [1, 2, 3]


def test_data_come_by_kind_and_in_order() -> None:
    red = np.zeros((4, 6, 3), np.uint8)
    red[..., 0] = 255
    film = np.zeros((2, 4, 6, 3), np.uint8)
    sound = np.zeros(100, np.float32)
    media = [
        item(MediaKind.IMAGE, 0, 1, red),
        item(MediaKind.AUDIO, 1, 1, sound, 16000.0),
        item(MediaKind.VIDEO, 2, 1, film, 2.0),
        item(MediaKind.IMAGE, 3, 1, red[:2]),
    ]
    data = media_data(media)
    first, second = data["image"]
    assert (first.shape, second.shape) == ((3, 4, 6), (3, 2, 6))
    assert first[:, 0, 0].tolist() == [255, 0, 0]
    assert data["audio"] == [(sound, 16000.0)]
    ((frames, facts),) = data["video"]
    assert frames is film
    assert (facts["fps"], facts["total_num_frames"], facts["frames_indices"]) == (2.0, 2, [0, 1])
    assert facts["do_sample_frames"] is False
    assert media_options(media) == {"do_resize": False}
    assert media_options(media[1:2]) == {}
    assert media_digests(media) == {"image": ["00", "03"], "audio": ["01"], "video": ["02"]}


def test_media_that_were_not_kept_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="image"):
        media_data([item(MediaKind.IMAGE, 0, 1)])
