"""MP3, WAV and FLAC files to mono samples at the model's rate."""

from collections.abc import Iterator
from typing import IO, Final

import av
import numpy as np
import soxr  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from mindserve.errors import InvalidRequest
from mindserve.media.containers import audio_format, decoded, open_container, read_head

INVALID: Final = "Invalid audio content, check the input audio"
UNSUPPORTED: Final = "Invalid audio content: expected 1 to {channels} channels at {low} to {high} Hz"

_MAX_CHANNELS: Final = 8
_MIN_RATE: Final = 4000
_MAX_RATE: Final = 384_000
_MARGIN_S: Final = 1
"""Sound beyond the wanted end that the resampling filter may look at."""


def decode_audio(file: IO[bytes], *, sampling_rate: int, max_samples: int) -> NDArray[np.float32]:
    """Mono samples in [-1, 1] at `sampling_rate` Hz, `[n]` with 0 < n <= `max_samples`; a longer sound is cut.

    No more is decoded than is returned, whatever the file's header promises. Raises InvalidRequest.
    """
    demuxer = audio_format(read_head(file))
    if demuxer is None:
        raise InvalidRequest(INVALID, param="messages")
    try:
        rate, samples = _decode(file, demuxer, max_s=max_samples / sampling_rate + _MARGIN_S)
    except InvalidRequest:
        raise
    except Exception as error:  # decoders raise anything at broken content
        raise InvalidRequest(INVALID, param="messages") from error
    if not samples.size or not np.isfinite(samples).all():
        raise InvalidRequest(INVALID, param="messages")
    return _resample(samples, rate, sampling_rate)[:max_samples]


def _decode(file: IO[bytes], demuxer: str, *, max_s: float) -> tuple[int, NDArray[np.float32]]:
    """The source's own rate and its mono samples."""
    with open_container(file, demuxer) as container:
        stream = container.streams.audio[0]
        rate = stream.rate
        if not (_MIN_RATE <= rate <= _MAX_RATE and 1 <= stream.channels <= _MAX_CHANNELS):
            raise InvalidRequest(
                UNSUPPORTED.format(channels=_MAX_CHANNELS, low=_MIN_RATE, high=_MAX_RATE), param="messages"
            )
        pieces: list[NDArray[np.float32]] = []
        wanted = int(max_s * rate)
        for piece in _mono(decoded(container, stream, av.AudioFrame)):
            pieces.append(piece[:wanted])
            wanted -= len(pieces[-1])
            if wanted <= 0:
                break
    return rate, np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def _mono(frames: Iterator[av.AudioFrame]) -> Iterator[NDArray[np.float32]]:
    """Planar floats first (integers divided by their full scale), then the mean of the channels."""
    planar = av.AudioResampler(format="fltp")
    for frame in frames:
        for floats in planar.resample(frame):
            yield floats.to_ndarray().mean(axis=0, dtype=np.float32)


def _resample(samples: NDArray[np.float32], rate: int, wanted_rate: int) -> NDArray[np.float32]:
    if rate == wanted_rate:
        return samples
    return np.asarray(soxr.resample(samples, rate, wanted_rate, quality="HQ"), np.float32)
