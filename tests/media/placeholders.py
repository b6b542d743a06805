"""What the contract's media cases call by name."""

from pathlib import Path

from tests.media.samples import audio_bytes, base64_of, image_bytes, picture, tone, wav_bytes


def media_placeholders(media_dir: Path, *, port: int) -> dict[str, str]:
    """Files of `media_dir`, the media server's port, and small media in base64."""
    return {
        "MEDIA_DIR": str(media_dir),
        "MEDIA_PORT": str(port),
        "LOCAL_PNG": str(media_dir / "demo.png"),
        "LOCAL_PNG_BASENAME": "demo.png",
        "LOCAL_SYMLINK_PNG": str(media_dir / "out.png"),
        "LOCAL_INNER_SYMLINK_PNG": str(media_dir / "in.png"),
        "LOCAL_PNG_41MB": str(media_dir / "large.png"),
        "JPG_B64": base64_of(image_bytes(picture(), "JPEG")),
        "PNG_B64": base64_of(image_bytes(picture())),
        "WAV_B64": base64_of(wav_bytes()),
        "MP3_B64": base64_of(audio_bytes(tone(44100), 44100, "libmp3lame", "mp3")),
        "FLAC_B64": base64_of(audio_bytes(tone(16000), 16000, "flac", "flac")),
    }
