import io
import struct
from contextlib import suppress

import numpy as np
import pytest
from numpy.typing import NDArray

from mindserve.errors import InvalidRequest
from mindserve.media.audio import INVALID, decode_audio
from tests.media.samples import audio_bytes, frames_of, image_bytes, picture, tone, video_bytes, wav_bytes

RATE = 16_000


def hear(content: bytes, max_samples: int = 30 * RATE) -> NDArray[np.float32]:
    samples = decode_audio(io.BytesIO(content), sampling_rate=RATE, max_samples=max_samples)
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    return samples


def refusal(content: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        hear(content)
    assert caught.value.param == "messages"
    return caught.value.message


def pitch(samples: NDArray[np.float32]) -> float:
    """Hertz of the strongest frequency."""
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.argmax(spectrum)) * RATE / len(samples)


@pytest.mark.parametrize("rate", [8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(
    ("codec", "container"),
    [
        ("pcm_s16le", "wav"),
        ("pcm_u8", "wav"),
        ("pcm_s24le", "wav"),
        ("pcm_s32le", "wav"),
        ("pcm_f32le", "wav"),
        ("libmp3lame", "mp3"),
        ("flac", "flac"),
    ],
)
def test_formats_rates_and_channels(codec: str, container: str, channels: int, rate: int) -> None:
    samples = hear(audio_bytes(tone(rate, channels=channels), rate, codec, container))
    assert abs(len(samples) - RATE / 2) <= 2
    assert pitch(samples) == pytest.approx(440, abs=4)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.04)


def test_channels_are_averaged() -> None:
    left, right = tone(RATE)[0], np.zeros(8000, np.float32)
    both = hear(audio_bytes(np.stack([left, right]), RATE, "pcm_f32le", "wav"))
    np.testing.assert_allclose(both, left / 2, atol=1e-6)
    opposite = hear(audio_bytes(np.stack([left, -left]), RATE, "pcm_f32le", "wav"))
    np.testing.assert_allclose(opposite, 0, atol=1e-6)


def test_samples_at_the_models_rate_are_not_touched() -> None:
    left = tone(RATE)
    np.testing.assert_array_equal(hear(audio_bytes(left, RATE, "pcm_f32le", "wav")), left[0])


def test_integers_are_divided_by_their_full_scale() -> None:
    samples = hear(audio_bytes(np.array([[-1.0, 0.5, 0.25] * 100], np.float32), RATE, "pcm_s16le", "wav"))
    np.testing.assert_array_equal(samples[:3], [-1.0, 0.5, 0.25])


def test_tagged_mp3() -> None:
    tagged = audio_bytes(tone(44100), 44100, "libmp3lame", "mp3")
    assert tagged.startswith(b"ID3")
    bare = tagged[10 + int.from_bytes(tagged[6:10], "big") :]
    assert bare[0] == 0xFF
    assert abs(len(hear(bare)) - len(hear(tagged))) < 2000
    assert pitch(hear(tagged + b"TAG" + b"\0" * 125)) == pytest.approx(440, abs=4)


def test_single_sample() -> None:
    assert len(hear(audio_bytes(np.array([[0.5]], np.float32), RATE, "pcm_f32le", "wav"))) == 1


def test_long_sound_is_cut() -> None:
    samples = hear(wav_bytes(seconds=3), max_samples=RATE)
    assert len(samples) == RATE
    resampled = hear(wav_bytes(rate=48_000, seconds=3), max_samples=RATE)
    assert len(resampled) == RATE
    np.testing.assert_allclose(resampled[-100:], hear(wav_bytes(rate=48_000, seconds=3))[RATE - 100 : RATE], atol=1e-6)


def test_header_that_promises_more_than_there_is() -> None:
    wav = bytearray(wav_bytes(seconds=0.25))
    size_at = wav.index(b"data") + 4
    wav[4:8] = wav[size_at : size_at + 4] = struct.pack("<I", 0xFFFFFFF0)
    assert len(hear(bytes(wav))) == RATE // 4


def header(*, rate: int = RATE, channels: int = 1, bits: int = 16, data: bytes = b"\0" * 64) -> bytes:
    """A WAV file with any numbers in its header."""
    width = channels * bits // 8
    fields = struct.pack("<HHIIHH", 1, channels & 0xFFFF, rate, rate * width & 0xFFFFFFFF, width & 0xFFFF, bits)
    body = b"fmt " + struct.pack("<I", len(fields)) + fields + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def test_odd_headers() -> None:
    assert len(hear(header())) == 32
    expected = "expected 1 to 8 channels at 4000 to 384000 Hz"
    assert expected in refusal(header(rate=1))
    assert expected in refusal(header(rate=2_000_000_000))
    assert expected in refusal(header(channels=64, data=b"\0" * 1280))
    assert refusal(header(channels=0)) in (INVALID, f"Invalid audio content: {expected}")
    assert refusal(header(rate=0)) in (INVALID, f"Invalid audio content: {expected}")
    assert refusal(header(data=b"")) == INVALID


def test_what_is_no_number() -> None:
    wave = np.full((1, 100), np.nan, np.float32)
    assert refusal(audio_bytes(wave, RATE, "pcm_f32le", "wav")) == INVALID


def test_long_silence_in_a_small_file() -> None:
    """Ten minutes of silence take a hundred kilobytes; half a minute is decoded."""
    flac = audio_bytes(np.zeros((1, 600 * 8000), np.float32), 8000, "flac", "flac")
    assert len(flac) < 200_000
    assert len(hear(flac)) == 30 * RATE


@pytest.mark.parametrize(("codec", "container"), [("pcm_s16le", "wav"), ("libmp3lame", "mp3"), ("flac", "flac")])
def test_any_damage_is_heard_or_refused(codec: str, container: str) -> None:
    """Never another error, whatever bytes change."""
    sound = audio_bytes(tone(RATE, 0.1), RATE, codec, container)
    random = np.random.default_rng(7)
    for _ in range(60):
        damaged = bytearray(sound)
        for place in random.integers(min(len(sound), 400), size=random.integers(1, 12)):
            damaged[place] = random.integers(256)
        with suppress(InvalidRequest):
            assert hear(bytes(damaged)).size


def broken_files() -> list[bytes]:
    wav = wav_bytes()
    flac = audio_bytes(tone(RATE), RATE, "flac", "flac")
    return [
        b"",
        b"RIFF",
        b"hello world, this is no sound at all",
        wav[:20],
        wav[:40],
        flac[:40],
        b"fLaC" + b"\0" * 100,
        b"ID3\x04\0\0\0\0\0\0" + b"\0" * 500,
        b"\xff\xfb\x90\x00" + b"\0" * 100,
        b"RIFF\x10\0\0\0WAVEfmt \xff\xff\xff\xff",
        image_bytes(picture()),
        video_bytes(frames_of(4, 16, 16), codec="mpeg4", container="avi"),
        audio_bytes(tone(48000), 48000, "libopus", "ogg"),
        audio_bytes(tone(44100), 44100, "aac", "adts"),
        audio_bytes(tone(44100), 44100, "aac", "ipod"),
    ]


@pytest.mark.parametrize("content", broken_files(), ids=range(len(broken_files())))
def test_broken_and_other_formats(content: bytes) -> None:
    assert refusal(content) == INVALID
