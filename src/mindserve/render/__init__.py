"""Events to bytes: `ChunkRenderer` for streams, `Completion` for full answers."""

from mindserve.render.chunks import DONE, ChunkRenderer, frame
from mindserve.render.completion import Completion, ranks_choices
from mindserve.render.wire import Envelope

__all__ = ["DONE", "ChunkRenderer", "Completion", "Envelope", "frame", "ranks_choices"]
