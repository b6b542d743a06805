"""Short ways to write requests and prompt builders."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindserve.chat.prompt import PromptBuilder
from mindserve.contract.request import ChatRequest, Message, Tool, ToolChoice, ToolChoiceMode
from mindserve.engine.base import ModelInfo
from mindserve.settings.values import ModelSettings
from mindserve.text.base import Tokenizer
from mindserve.text.bytes_tokenizer import CHATML_TEMPLATE, ByteTokenizer

WEATHER = Tool(
    name="get_weather",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    strict=False,
    raw={"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}},
)
CLOCK = Tool(name="clock", parameters=None, strict=False, raw={"type": "function", "function": {"name": "clock"}})
AUTO = ToolChoice(mode=ToolChoiceMode.AUTO)


def builder(
    template: str | None = CHATML_TEMPLATE,
    *,
    tokenizer: Tokenizer | None = None,
    model_type: str = "llama",
    media: Any = None,
    **settings: Any,
) -> PromptBuilder:
    """A builder for a model with this template."""
    return PromptBuilder(
        tokenizer or ByteTokenizer(chat_template=template),
        ModelSettings(name="m", path=Path("m"), **settings),
        ModelInfo(model_type=model_type, vocab_size=1024, max_context_len=4096, eos_token_ids=frozenset({258})),
        media=media,
    )


def request(*messages: Message | str, **fields: Any) -> ChatRequest:
    """A request; plain strings are user messages."""
    conversation = tuple(m if isinstance(m, Message) else Message(role="user", content=m) for m in messages or ("Hi",))
    return ChatRequest(model="m", messages=conversation, **fields)


def message(role: str, content: Any = None, **fields: Any) -> Message:
    """One message."""
    return Message(role=role, content=content, **fields)


def call(arguments: str, name: str = "get_weather") -> Mapping[str, Any]:
    """A tool call of an earlier assistant message."""
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def from_golden(chat: Mapping[str, Any]) -> ChatRequest:
    """A golden conversation as a client would send it."""
    messages = [
        Message(
            role=entry["role"],
            content=entry.get("content"),
            tool_call_id=entry.get("tool_call_id"),
            tool_calls=tuple(
                call(json.dumps(sent["function"]["arguments"]), sent["function"]["name"])
                for sent in entry.get("tool_calls") or ()
            ),
        )
        for entry in chat["messages"]
    ]
    tools = tuple(
        Tool(name=raw["function"]["name"], parameters=raw["function"].get("parameters"), strict=False, raw=raw)
        for raw in chat.get("tools") or ()
    )
    kwargs = {key: value for key, value in chat["template_kwargs"].items() if key != "add_generation_prompt"}
    return ChatRequest(
        model="m",
        messages=tuple(messages),
        tools=tools,
        tool_choice=AUTO if tools else ToolChoice(),
        template_kwargs=kwargs,
        enable_thinking=kwargs.get("enable_thinking"),
    )
