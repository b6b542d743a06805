"""A service over the scripted engine, with a prompt builder that takes the last message as the prompt."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindserve.chat.messages import media_parts
from mindserve.chat.prompt import Prompt, PromptBuilder
from mindserve.contract.request import ChatRequest, Message
from mindserve.engine.scripted import Answer, Script, ScriptedEngine
from mindserve.errors import InvalidRequest
from mindserve.output.events import OutputEvent
from mindserve.output.plan import OutputPlan
from mindserve.service import ChatService, ChatStream, RequestTimeline
from mindserve.settings.values import Limits, ModelSettings, SchedulerSettings, ServerSettings, Settings
from mindserve.text.bytes_tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer(markers=("<think>", "</think>"))
END = 258
MAY_FETCH = threading.Event()
"""Prompts with media wait for it, as for a slow download."""


class PlainPrompts(PromptBuilder):
    """The last message's text is the prompt; `refuse` in it is refused."""

    def __init__(self, plan: OutputPlan | None) -> None:
        self._plan_of_all = plan

    def add_adapter(self, name: str, directory: Path) -> None:
        """It has no template to bring."""

    def remove_adapter(self, name: str) -> None:
        """Nor to take away."""

    def build(self, request: ChatRequest) -> Prompt:
        if media_parts(request.messages):
            assert MAY_FETCH.wait(20)
            return Prompt(token_ids=[1], text="", plan=OutputPlan())
        text = request.messages[-1].content
        assert isinstance(text, str)
        if "refuse" in text:
            raise InvalidRequest("refused", param="messages")
        plan = self._plan_of_all or OutputPlan(
            skip_special_tokens=request.skip_special_tokens,
            stop=request.stop,
            stop_token_ids=frozenset(request.stop_token_ids),
            include_stop=request.include_stop,
        )
        return Prompt(token_ids=TOKENIZER.encode(text), text=text, plan=plan)


@dataclass(slots=True)
class Records:
    """An observer that keeps everything."""

    arrived: list[str] = field(default_factory=list[str])
    finished: list[RequestTimeline] = field(default_factory=list[RequestTimeline])

    def request_arrived(self, timeline: RequestTimeline) -> None:
        self.arrived.append(timeline.request_id)

    def request_finished(self, timeline: RequestTimeline) -> None:
        self.finished.append(timeline)


@dataclass(slots=True, kw_only=True)
class House:
    """Everything a test wants to look at."""

    service: ChatService
    engine: ScriptedEngine
    records: Records

    async def open(self, text: str = "hi", *, request_id: str = "r", **fields: Any) -> ChatStream:
        return await self.service.open(chat(text, **fields), request_id=request_id)

    async def steps(self, text: str = "hi", *, request_id: str = "r", **fields: Any) -> list[list[OutputEvent]]:
        """All steps of one request, and nothing of it is left afterwards."""
        stream = await self.open(text, request_id=request_id, **fields)
        steps = [step async for step in stream]
        assert self.service.admission.running == 0
        return steps

    async def events(self, text: str = "hi", **fields: Any) -> list[OutputEvent]:
        return [event for step in await self.steps(text, **fields) for event in step]


def chat(text: str = "hi", **fields: Any) -> ChatRequest:
    return ChatRequest(**{"model": "m", "messages": (Message(role="user", content=text),)} | fields)


def ends(events: list[OutputEvent]) -> list[tuple[int, str]]:
    """Index and reason of every terminal event."""
    return [(event.index, event.finish_reason) for event in events if event.finish_reason]


def said(events: list[OutputEvent], index: int = 0) -> str:
    return "".join(event.content for event in events if event.index == index)


@asynccontextmanager
async def house(
    *answers: Answer,
    limits: Limits | None = None,
    step_interval_s: float = 0.0,
    max_iter_times: int = 512,
    plan: OutputPlan | None = None,
    **model: Any,
) -> AsyncIterator[House]:
    """A running service whose engine gives these answers; `model` are fields of ModelSettings."""
    script = Script(answers=answers or (Answer(),), step_interval_s=step_interval_s)
    engine = ScriptedEngine(script, codec=TOKENIZER, eos_token_id=END)
    await engine.start()
    settings = Settings(
        model=ModelSettings(**{"name": "m", "path": Path("m")} | model),
        server=ServerSettings(limits=limits or Limits(), tokenizer_threads=2),
        scheduler=SchedulerSettings(max_iter_times=max_iter_times),
    )
    records = Records()
    service = ChatService(settings, engine=engine, tokenizer=TOKENIZER, prompts=PlainPrompts(plan), observer=records)
    try:
        yield House(service=service, engine=engine, records=records)
    finally:
        await service.close()
        await engine.close()
