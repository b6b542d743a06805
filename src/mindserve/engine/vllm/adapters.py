"""LoRA adapters of a running vLLM: which requests may name, and until when each is needed. Lives on the event loop."""

import asyncio
import logging
from itertools import count
from pathlib import Path

from mindserve.engine.checks import no_adapter
from mindserve.engine.vllm.border import Adapter, Core
from mindserve.engine.vllm.model import adapter_rank
from mindserve.errors import InvalidRequest, MindserveError, ModelLoadError

logger = logging.getLogger(__name__)

NO_ADAPTERS = (
    "The engine was started without adapters: name one in LoraModules, or set MindserveConfig.vllm.enable_lora to true."
)


class Adapters:
    """An adapter is loaded before any request may name it: one that does not load would end the engine for everybody.
    One that is unloaded stays until nothing runs with it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._by_name: dict[str, Adapter] = {}
        self._running: dict[str, int] = {}
        """How many sequences run with each, by key."""
        self._loaded: set[str] = set()
        """Keys of what vLLM holds."""
        self._numbers = count(1)
        self._changing = asyncio.Lock()
        self._removals: set[asyncio.Task[None]] = set()

    def find(self, name: str | None) -> Adapter | None:
        """Raises InvalidRequest."""
        if name is None:
            return None
        if name not in self._by_name:
            raise no_adapter(name, param="model")
        return self._by_name[name]

    def started(self, adapter: Adapter | None) -> None:
        """A sequence runs with it."""
        if adapter is not None:
            self._running[adapter.key] = self._running.get(adapter.key, 0) + 1

    def ended(self, adapter: Adapter | None) -> None:
        """And does not any more."""
        if adapter is None:
            return
        self._running[adapter.key] -= 1
        if not self._running[adapter.key]:
            del self._running[adapter.key]
            if adapter not in self._by_name.values():
                self._remove(adapter)

    async def load(self, name: str, path: Path) -> None:
        """Raises ModelLoadError, or InvalidRequest where vLLM takes none or the name is taken."""
        await asyncio.gather(*self._removals)
        async with self._changing:
            self._refuse(name)
            rank = await asyncio.to_thread(adapter_rank, path)
            number = next(self._numbers)
            adapter = Adapter(number=number, key=f"{number}:{name}", path=path)
            try:
                await self._core.load_adapter(adapter)
            except MindserveError:
                raise
            except Exception as error:
                logger.warning("The adapter %s did not load", path, exc_info=error)
                raise ModelLoadError(f"{path}: vLLM did not load the adapter (rank {rank}): {error}") from error
            self._loaded.add(adapter.key)
            self._by_name[name] = adapter

    def unload(self, name: str) -> None:
        """New requests are refused from now on. Raises InvalidRequest."""
        if name not in self._by_name:
            raise no_adapter(name, param="lora_name")
        adapter = self._by_name.pop(name)
        if adapter.key not in self._running:
            self._remove(adapter)

    async def close(self) -> None:
        """Wait for changes that are under way."""
        for removal in self._removals:
            removal.cancel()
        await asyncio.gather(*self._removals, return_exceptions=True)

    def _refuse(self, name: str) -> None:
        if not self._core.takes_adapters:
            raise InvalidRequest(NO_ADAPTERS, param="lora_name")
        if name in self._by_name:
            raise InvalidRequest(f"There is an adapter {name} already.", param="lora_name")
        if len(self._loaded) >= self._core.max_adapters:
            # vLLM would forget one that requests may still name
            raise InvalidRequest(f"There are {len(self._loaded)} adapters already; unload one.", param="lora_name")

    def _remove(self, adapter: Adapter) -> None:
        removal = asyncio.create_task(self._remove_now(adapter))
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _remove_now(self, adapter: Adapter) -> None:
        async with self._changing:
            self._loaded.discard(adapter.key)
            try:
                await self._core.unload_adapter(adapter)
            except Exception as error:
                logger.warning("vLLM did not unload the adapter %s", adapter.key, exc_info=error)
