"""Which adapters requests may name, and until when each is needed. Lives on the event loop."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeAlias

from mindserve.engine.base import GenerateRequest
from mindserve.engine.checks import no_adapter
from mindserve.engine.native.step import Adapters
from mindserve.errors import InvalidRequest

Change: TypeAlias = Callable[[], None]


class AdapterRegistry:
    """Every load has a key of its own, which requests carry instead of the name: another adapter under the same name
    shares nothing with the first, cached blocks neither, and one that is unloaded stays for those who run with it."""

    def __init__(self, apply: Callable[[Change], None]) -> None:
        """`apply` has a change done between two steps."""
        self.of_model: Adapters | None = None
        """Set when the model is loaded; None: it takes no adapters."""
        self._apply = apply
        self._keys: dict[str, str] = {}
        """Of what new requests may use, by name."""
        self._running: dict[int, str] = {}
        """Keys of requests that have not ended, by the requests' numbers."""
        self._numbers = count()
        self._changing = asyncio.Lock()
        self._removals: set[asyncio.Task[None]] = set()

    def resolve(self, request: GenerateRequest) -> GenerateRequest:
        """The request with the key for the name. Raises InvalidRequest."""
        if request.adapter is None:
            return request
        if request.adapter not in self._keys:
            raise no_adapter(request.adapter, param="model")
        return replace(request, adapter=self._keys[request.adapter])

    def started(self, number: int, request: GenerateRequest) -> None:
        """Keep the adapter of a resolved request until it has ended."""
        if request.adapter is not None:
            self._running[number] = request.adapter

    def ended(self, number: int) -> None:
        """The last request that runs with an unloaded adapter frees it."""
        key = self._running.pop(number, None)
        if key is not None and key not in self._keys.values():
            self._free_unless_running(key)

    async def load(self, name: str, path: Path) -> None:
        """Raises ModelLoadError, or InvalidRequest where the name is taken."""
        if self.of_model is None:
            raise InvalidRequest("The model takes no adapters.", param="lora_name")
        async with self._changing:
            if name in self._keys:
                raise InvalidRequest(f"There is an adapter {name} already.", param="lora_name")
            key = f"{next(self._numbers)}:{name}"
            self._apply(await asyncio.to_thread(self.of_model.add, key, path))
            self._keys[name] = key

    async def unload(self, name: str) -> None:
        """New requests are refused from now on; it is freed when nothing runs with it. Raises InvalidRequest."""
        if name not in self._keys:
            raise no_adapter(name, param="lora_name")
        self._free_unless_running(self._keys.pop(name))

    async def close(self) -> None:
        """Wait for changes that are under way."""
        async with self._changing:
            self.of_model = None
        await asyncio.gather(*self._removals)

    def _free_unless_running(self, key: str) -> None:
        if key not in self._running.values():
            removal = asyncio.create_task(self._remove(key))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def _remove(self, key: str) -> None:
        async with self._changing:
            if self.of_model is not None:
                self._apply(await asyncio.to_thread(self.of_model.remove, key))
