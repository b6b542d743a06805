"""Qwen3-Coder: tags for the function and each parameter; values are bare text, typed by the tool's schema."""

from mindserve.output.formats.base import Arguments, CallStart, Key, Literal, Many, Name, Space, ToolFormat, Value

_END = "</tool_call>"

QWEN3_CODER = ToolFormat(
    name="qwen3_coder",
    starts=(
        CallStart(
            marker="<tool_call>",
            parts=(
                Space("\n"),
                Literal("<function="),
                Name(),
                Literal(">"),
                Space("\n"),
                Many(
                    (
                        Literal("<parameter="),
                        Key(end=">"),
                        Literal(">"),
                        Value(end="</parameter>", forbidden=_END, margin="\n"),
                        Space("\n"),
                    )
                ),
                Literal("</function>"),
                Space("\n"),
                Literal(_END),
            ),
        ),
    ),
    arguments=Arguments.PARAMETERS,
    separator="\n",
)
