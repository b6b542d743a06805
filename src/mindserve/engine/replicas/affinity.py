"""Which replica a request should go to: the least loaded one, unless another knows the prompt's beginning already."""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from mindserve.engine.base import GenerateRequest

SHORTEST_PREFIX = 64
"""Tokens of the shortest beginning that counts; the others are twice, four times, ... as long."""

MAX_PREFIXES = 6
"""So the longest has 2048 tokens."""

MAX_KEYS = 8192
"""Beginnings that are remembered; the one unused longest goes first."""

SLACK = 4
"""How many more requests than the least loaded replica one may have and still be preferred, or a quarter more."""


def prefix_keys(request: GenerateRequest) -> tuple[int, ...]:
    """Hashes of the prompt's beginnings, longest first, adapter and media included. Valid in this process."""
    tokens = request.prompt_token_ids
    lengths = [SHORTEST_PREFIX << i for i in range(MAX_PREFIXES) if SHORTEST_PREFIX << i <= len(tokens)]
    return tuple(hash((request.adapter, *_digests(request, length), *tokens[:length])) for length in reversed(lengths))


def _digests(request: GenerateRequest, length: int) -> list[bytes]:
    return [media.digest for media in request.media if media.offset < length]


class Affinity:
    """Remembers which replicas have seen which beginnings."""

    def __init__(self) -> None:
        self._holders: OrderedDict[int, set[str]] = OrderedDict()

    def rank(self, keys: Sequence[int], loads: Mapping[str, int]) -> list[str]:
        """The replicas in `loads` (their running requests), best first."""
        by_load = sorted(loads, key=lambda replica: loads[replica])
        if not by_load:
            return []
        least = loads[by_load[0]]
        eligible = [replica for replica in by_load if loads[replica] <= least + max(SLACK, least // 4)]
        preferred = self._knowing(keys, eligible)
        return preferred + [replica for replica in by_load if replica not in preferred]

    def _knowing(self, keys: Sequence[int], replicas: list[str]) -> list[str]:
        """Of the replicas, those that have seen the longest beginning that any of them has seen."""
        for key in keys:
            holders = self._holders.get(key, ())
            knowing = [replica for replica in replicas if replica in holders]
            if knowing:
                return knowing
        return []

    def record(self, keys: Sequence[int], replica: str) -> None:
        """A prompt with these beginnings has gone to `replica`."""
        for key in keys:
            self._holders.setdefault(key, set()).add(replica)
            self._holders.move_to_end(key)
        while len(self._holders) > MAX_KEYS:
            self._holders.popitem(last=False)

    def keep(self, replicas: Collection[str]) -> None:
        """Forget all other replicas."""
        for key in list(self._holders):
            self._holders[key] &= set(replicas)
            if not self._holders[key]:
                del self._holders[key]
