"""ChatGLM3's prompt, for weights that bring no chat template: its own tokenizer builds prompts in code.

`[gMASK]sop`, then for each message the role's token, a line with metadata (the function's name of a call, else
nothing), and the content after a space; at last `<|assistant|>`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mindserve.chat.failure import encode_failure

_TOOLS_HEADER: Final = "Answer the following questions as best as you can. You have access to the following tools:"
_ROLES: Final = {"system": "system", "user": "user", "assistant": "assistant", "tool": "observation"}


class ChatGlmTemplate:
    """Renders like a `ChatTemplate`."""

    variables = frozenset({"messages", "tools", "add_generation_prompt"})
    source = ""
    wants_parts = False

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt's text. Raises InvalidRequest for a role that ChatGLM3 does not know."""
        turns = "".join(_turns(variables["messages"], variables.get("tools")))
        return f"[gMASK]sop{turns}<|assistant|>"


def _turns(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
    rest = list(messages)
    if tools:
        first = rest.pop(0)["content"] + "\n" if rest and rest[0]["role"] == "system" else ""
        functions = json.dumps([tool["function"] for tool in tools], indent=4, ensure_ascii=False)
        yield _turn("system", f"{first}{_TOOLS_HEADER}\n{functions}")
    for message in rest:
        yield from _message(message)


def _message(message: Mapping[str, Any]) -> Iterator[str]:
    name: str = message["role"]
    role = name if name in _ROLES.values() else _ROLES.get(name)
    if role is None:
        raise encode_failure(f"unknown role {name[:40]}")
    calls = message.get("tool_calls") or ()
    if message["content"] or not calls:
        yield _turn(role, message["content"])
    for call in calls:
        arguments = call["function"]["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        yield _turn(role, text, metadata=call["function"]["name"])


def _turn(role: str, content: str, *, metadata: str = "") -> str:
    return f"<|{role}|>{metadata}\n {content}"
