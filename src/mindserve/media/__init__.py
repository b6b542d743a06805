"""Images, videos and sounds of a request: found, fetched under a policy, decoded within bounds, made into features."""

from mindserve.media.limits import MediaLimits
from mindserve.media.loader import MediaLoader, PreparedMedia
from mindserve.media.processors import MediaProcessors, load_processors

__all__ = ["MediaLimits", "MediaLoader", "MediaProcessors", "PreparedMedia", "load_processors"]
