"""The contract's output cases: generated text and the answer it makes."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindserve.output.formats.base import markers_of
from mindserve.output.formats.reasoning import THINK_TAGS
from mindserve.output.formats.registry import find_format
from mindserve.output.plan import OutputPlan, ThoughtPlan, ThoughtStart, ToolPlan

PARSERS = {
    "qwen2.5": "qwen2_5",
    "qwen3": "qwen3",
    "qwen3-coder": "qwen3_coder",
    "qwen2": "qwen2",
    "chatglm3": "chatglm3",
    "glm4": "glm4",
    "llama3": "llama3",
    "deepseek-v3": "deepseek_v3",
    "deepseek-r1": "deepseek_r1",
    "deepseek-v3.1": "deepseek_v31",
    "deepseek-v3.2": "deepseek_v32",
}
THINKERS = ("qwen3", "deepseek-r1", "deepseek-v3.1", "deepseek-v3.2")
VERBATIM = ("deepseek-v3", "deepseek-r1", "deepseek-v3.1")


@dataclass(frozen=True)
class Case:
    """One case, as far as tests read it."""

    id: str
    family: str
    text: str
    finish: str
    plan: OutputPlan
    content: str
    reasoning: str | None
    calls: list[tuple[str, str]]
    finish_reason: str
    request: dict[str, Any]


def markers(case: Case) -> list[str]:
    """The texts of the case's formats that vocabularies have tokens for."""
    tools, thought = case.plan.tools, case.plan.thought
    texts = markers_of(thought.format if thought else None, tools.format if tools else None)
    return sorted(text for text in texts if re.fullmatch(r"<[^<>]+>|✿\w+✿", text.removesuffix(":")))


def load_cases() -> list[Case]:
    """All cases of the file."""
    path = Path(__file__).parent.parent / "data" / "output" / "cases.json"
    cases = [_read(case) for case in json.loads(path.read_text())]
    assert len(cases) == 93
    return cases


def _read(case: dict[str, Any]) -> Case:
    request, expect = case["request"], case["expect"]
    return Case(
        id=case["id"],
        family=case["family"],
        text=case["raw_output"],
        finish=request["engine_finish"],
        plan=_plan(case["family"], request),
        content=expect["content"],
        reasoning=expect["reasoning_content"],
        calls=[(call["name"], call["arguments"]) for call in expect["tool_calls"]],
        finish_reason=expect["finish_reason"],
        request=request,
    )


def _plan(family: str, request: dict[str, Any]) -> OutputPlan:
    tools = request["tools"]
    has_tools = bool(tools) and request["tool_choice"] != "none"
    declared = tools if isinstance(tools, list) else []
    return OutputPlan(
        skip_special_tokens=request.get("skip_special_tokens", True),
        thought=_thought(family, request),
        tools=ToolPlan(
            format=find_format(PARSERS[family]),
            parameters={tool["function"]["name"]: tool["function"].get("parameters") for tool in declared},
        )
        if has_tools
        else None,
    )


def _thought(family: str, request: dict[str, Any]) -> ThoughtPlan | None:
    if family not in THINKERS:
        return None
    is_thinking = request["enable_thinking"] is not False
    return ThoughtPlan(
        format=THINK_TAGS,
        start=ThoughtStart.ASSUMED if is_thinking else ThoughtStart.NONE,
        is_split=request["enable_reasoning"],
    )
