"""Qwen2.5, Qwen3 and others in the Hermes style: one JSON object per call, between tags."""

from mindserve.output.formats.base import CallStart, Json, JsonCall, Literal, Space, ToolFormat

HERMES = ToolFormat(
    name="hermes",
    starts=(CallStart(marker="<tool_call>", parts=(Space("\n"), Json(), Space("\n"), Literal("</tool_call>"))),),
    arguments=JsonCall(),
    separator="\n",
)
