"""The thread that owns a model: it loads it, runs its steps, and frees it.

The model's kernels run without the interpreter's lock, so the event loop handles one step's events while the next
step runs. There is one wake-up of the event loop per step, whatever the number of streams.
"""

import asyncio
import logging
from collections.abc import Callable
from threading import Condition, Thread
from typing import TypeAlias

from mindserve.engine.base import EngineStats, ModelInfo
from mindserve.engine.native.outbox import Events
from mindserve.engine.native.step import Runner
from mindserve.engine.native.stepper import Stepper
from mindserve.errors import EngineFailure, MindserveError, ModelLoadError

logger = logging.getLogger(__name__)

FAILED_STEPS_UNTIL_UNHEALTHY = 3
"""Consecutive ones. The engine goes on trying, and is healthy again after a step that succeeds."""

Command: TypeAlias = Callable[[Stepper], None]
Load: TypeAlias = Callable[[], tuple[Runner, ModelInfo, Stepper]]


class Worker:
    """Runs on its own thread; `post` and the properties may be used from any."""

    def __init__(self, load: Load, deliver: Callable[[Events], None], loop: asyncio.AbstractEventLoop) -> None:
        self._load = load
        self._deliver = deliver
        self._loop = loop
        self._inbox: list[Command] = []
        self._news = Condition()
        self._is_closing = False
        self._is_over = False
        self._thread = Thread(target=self._main, name="mindserve-engine", daemon=True)
        self._loaded: asyncio.Future[ModelInfo] = loop.create_future()
        self.stats = EngineStats()
        """As of the last step."""
        self.is_healthy = True

    async def start(self) -> ModelInfo:
        """Start the thread and wait until the model is loaded. Raises ModelLoadError."""
        self._thread.start()
        return await self._loaded

    def post(self, command: Command) -> bool:
        """Have `command` done between two steps. False: the thread has ended and nothing will be done any more."""
        with self._news:
            if not self._is_over:
                self._inbox.append(command)
                self._news.notify()
            return not self._is_over

    async def close(self) -> None:
        """End everything that runs, free the model and the thread."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _main(self) -> None:
        try:
            runner, info, stepper = self._load()
        except Exception as error:
            failure = _load_failure(error)
            self._on_loop(lambda: self._tell(failure))
            return
        self._on_loop(lambda: self._tell(info))
        try:
            self._run(stepper)
        except Exception:
            logger.exception("The engine's thread failed")
            self._give_up(stepper)
        self._report(stepper)
        runner.close()

    def _tell(self, outcome: ModelInfo | MindserveError) -> None:
        if self._loaded.done():
            return  # nobody waits any more
        if isinstance(outcome, ModelInfo):
            self._loaded.set_result(outcome)
        else:
            self._loaded.set_exception(outcome)

    def _give_up(self, stepper: Stepper) -> None:
        """Nothing can be answered any more, what has just been posted neither."""
        self.is_healthy = False
        with self._news:
            self._is_over = True
            commands, self._inbox = self._inbox, []
        for command in commands:
            command(stepper)
        stepper.fail_all(EngineFailure("The engine stopped working."))

    def _run(self, stepper: Stepper) -> None:
        while True:
            commands, is_closing = self._take(stepper)
            for command in commands:
                command(stepper)
            if is_closing:
                stepper.cancel_all()
                return
            stepper.step()
            self.is_healthy = stepper.failed_steps < FAILED_STEPS_UNTIL_UNHEALTHY
            self._report(stepper)

    def _take(self, stepper: Stepper) -> tuple[list[Command], bool]:
        """What was posted; sleeps while there is nothing to do at all."""
        with self._news:
            while not (self._inbox or self._is_closing or stepper.has_work):
                self._news.wait()
            commands, self._inbox = self._inbox, []
            return commands, self._is_closing

    def _report(self, stepper: Stepper) -> None:
        self.stats = stepper.stats()
        events = stepper.take_events()
        if events:
            self._on_loop(lambda: self._deliver(events))

    def _on_loop(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            logger.warning("The event loop was closed before the engine")


def _load_failure(error: Exception) -> MindserveError:
    """What is wrong with a model's files is told to the operator once; anything else may be a fault of ours."""
    if isinstance(error, MindserveError):
        return error
    logger.error("Loading failed", exc_info=error)
    return ModelLoadError(f"The model did not load: {error}")
