"""What travels between the server and a replica: calls are pickled by Ray, the steady flow of events is packed here."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from mindserve.engine.base import EngineStats, GenerateRequest, ModelInfo, TokenEvent
from mindserve.errors import MindserveError

Steps: TypeAlias = list[tuple[int, list[TokenEvent]]]
"""Request number and what one or more steps brought it. An empty list says that the replica has the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a call should go; the first argument of every call, for the router."""

    to: str | None = None
    """The one replica that is meant."""
    among: tuple[str, ...] = ()
    """Otherwise: the replicas that take part."""
    keys: tuple[int, ...] = ()
    """Of the prompt's beginnings, longest first (`affinity.prefix_keys`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What a replica says about itself."""

    replica: str
    node: str
    info: ModelInfo | None = None
    """None where the model could not be loaded."""
    failure: MindserveError | None = None
    """Why."""
    answered: int = 0
    """Requests that it has had."""


class Parcel(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a replica's stream."""

    sent_s: float
    """`time.perf_counter()` of the replica."""
    steps: Steps
    stats: EngineStats
    is_healthy: bool


class ParcelCodec:
    """Packs and unpacks parcels. Errors travel as their class's word, message and field."""

    def __init__(self) -> None:
        self._classes = {kind.word: kind for kind in _error_classes(MindserveError)}
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_pack_error)
        self._decoder = msgspec.msgpack.Decoder(Parcel, dec_hook=self._unpack_error)

    def encode(self, parcel: Parcel) -> bytes:
        """The parcel as bytes."""
        return self._encoder.encode(parcel)

    def decode(self, data: bytes) -> Parcel:
        """The parcel from bytes."""
        return self._decoder.decode(data)

    def _unpack_error(self, kind: type, packed: object) -> MindserveError:
        word, message, param = msgspec.convert(packed, tuple[str, str, str | None])
        return self._classes.get(word, MindserveError)(message, param=param)


def _pack_error(value: object) -> tuple[str, str, str | None]:
    if not isinstance(value, MindserveError):
        raise NotImplementedError(f"{type(value).__name__} has no place in a parcel")
    return value.word, value.message, value.param


def _error_classes(kind: type[MindserveError]) -> Iterator[type[MindserveError]]:
    yield kind
    for sub in kind.__subclasses__():
        yield from _error_classes(sub)


def pack_request(request: GenerateRequest) -> bytes:
    """A request as bytes; unpacking one with a mask can take a while, for the mask prepares its vocabulary."""
    return pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)


def unpack_request(data: bytes) -> GenerateRequest:
    """The request from bytes."""
    request = pickle.loads(data)
    assert isinstance(request, GenerateRequest)
    return request
