"""What fetching and decoding may cost: the contract bounds the files, the rest bounds what they unpack to."""

from dataclasses import dataclass

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaLimits:
    """Bounds of one server's media work."""

    max_request_bytes: int = 1000 * MEGABYTE
    """All media of one request together."""
    connect_timeout_s: float = 5
    """Per address; also for looking a name up."""
    read_timeout_s: float = 30
    """Longest silence of a server."""
    download_timeout_s: float = 60
    """All downloads of one request together, waiting for a place included."""
    max_redirects: int = 5
    max_parts_at_once: int = 16
    """Parts of all requests that are being fetched or decoded: bounds temporary files and memory."""
    decode_threads: int = 2
    max_image_pixels: int = 89_478_485
    """Of a decoded image: a quarter of a gigabyte of RGB."""
    max_frame_pixels: int = 8192 * 4320
    """Of one frame of a video."""
    max_decoded_pixels: int = 20_000_000_000
    """Of all frames of a video that are decoded on the way to the sampled ones (1080p: 10 000 frames). A longer one is
    sampled from its key frames."""
    max_video_packets: int = 1_000_000
    """Frames that a video may have (9 hours at 30 a second)."""
    cache_bytes: int = 64 * MEGABYTE
    """Features kept for media that come again (a conversation's history)."""
