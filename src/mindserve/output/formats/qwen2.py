"""Qwen1.5 and Qwen2: flower-marked lines. Only the first call counts."""

from mindserve.output.formats.base import CallStart, Json, JsonArguments, Literal, Name, Space, ToolFormat

QWEN2 = ToolFormat(
    name="qwen2",
    starts=(
        CallStart(
            marker="✿FUNCTION✿:",
            parts=(Space(" "), Name(), Space("\n"), Literal("✿ARGS✿:"), Space(" "), Json()),
        ),
    ),
    arguments=JsonArguments(),
    further_start=None,
    max_calls=1,
)
