"""What the routes share: the service, the model's names, the mode that is in force, and the way to stop."""

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from mindserve.contract.context import ValidationContext
from mindserve.service import ChatService
from mindserve.settings.values import ApiMode, Settings
from mindserve.telemetry import Metrics
from mindserve.text.base import Tokenizer

OWNER = "mindserve"


class RequestIds:
    """Ids for requests that bring none: counted in vLLM mode, random in native mode."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def next(self, mode: ApiMode) -> str:
        """A fresh id."""
        if mode is ApiMode.NATIVE:
            return f"chatcmpl-{secrets.token_hex(12)}"
        return f"endpoint_common_{next(self._numbers)}"


class ModelNames(Mapping[str, None]):
    """What requests may put into `model`: the model's name and its adapters', as they come and go."""

    def __init__(self, model: str, service: ChatService) -> None:
        self._model = model
        self._service = service

    def __contains__(self, name: object) -> bool:
        return name == self._model or name in self._service.adapters

    def __getitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter((self._model, *sorted(self._service.adapters)))

    def __len__(self) -> int:
        return 1 + len(self._service.adapters)


@dataclass(slots=True, kw_only=True)
class ServerState:
    """One served model. Only `mode` and the stop switch ever change."""

    settings: Settings
    service: ChatService
    tokenizer: Tokenizer
    contexts: Mapping[ApiMode, ValidationContext]
    """What validation knows, in either mode."""
    metrics: Metrics
    mode: ApiMode
    request_stop: Callable[[float], None] = lambda drain_timeout_s: None
    """Begin to stop, with this many seconds for running requests; set by the lifecycle."""
    is_stopping: bool = False
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a stopping server has no request left."""
    request_ids: RequestIds = field(default_factory=RequestIds)
    started_at: int = field(default_factory=lambda: int(time.time()))

    @property
    def is_ready(self) -> bool:
        """Whether a new request would be taken on."""
        return not self.is_stopping and self.service.engine.is_healthy

    @property
    def model_names(self) -> tuple[str, ...]:
        """The model, then its adapters."""
        return tuple(ModelNames(self.settings.model.name, self.service))
