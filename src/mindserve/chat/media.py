"""Media of a conversation at their places in the prompt."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from mindserve.contract.request import MediaPart
from mindserve.engine.base import MediaInput, MediaKind
from mindserve.errors import InvalidRequest
from mindserve.media import MediaLoader, PreparedMedia
from mindserve.media.processors import MEDIA_KINDS

MISMATCH = "The prompt has {found} media placeholders where the messages have {wanted} media parts of those kinds."


class PlacedMedia:
    """`chat.prompt.MediaReader` for one model. Used by worker threads; media are loaded on the loader's event loop."""

    def __init__(
        self, loader: MediaLoader, token_ids: Mapping[MediaKind, int], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`token_ids`: the placeholder of each kind that the model takes."""
        self._loader = loader
        self._kinds = {token_id: kind for kind, token_id in token_ids.items()}
        self._loop = loop

    def read(self, parts: Sequence[MediaPart], token_ids: list[int]) -> tuple[list[int], tuple[MediaInput, ...]]:
        """Fetch and decode `parts`, and repeat each one's placeholder as often as it has tokens.

        Raises InvalidRequest, PromptTooLong and Overloaded; before any fetch when placeholders and parts differ.
        """
        found = [self._kinds[token] for token in token_ids if token in self._kinds]
        if found != [MEDIA_KINDS[part.kind] for part in parts]:
            raise InvalidRequest(MISMATCH.format(found=len(found), wanted=len(parts)), param="messages")
        media = asyncio.run_coroutine_threadsafe(self._loader.load(parts), self._loop).result()
        return self._placed(token_ids, iter(media))

    def _placed(
        self, token_ids: Sequence[int], media: Iterator[PreparedMedia]
    ) -> tuple[list[int], tuple[MediaInput, ...]]:
        expanded: list[int] = []
        placed: list[MediaInput] = []
        for token in token_ids:
            if token not in self._kinds:
                expanded.append(token)
                continue
            item = next(media)
            placed.append(
                MediaInput(
                    kind=item.kind,
                    offset=len(expanded),
                    length=item.tokens,
                    features=item.features,
                    digest=item.digest,
                    decoded=item.decoded,
                )
            )
            expanded += [token] * item.tokens
        return expanded, tuple(placed)
