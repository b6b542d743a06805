"""Thoughts between tags: Qwen3, DeepSeek and most others that think."""

from mindserve.output.formats.base import ReasoningFormat

THINK_TAGS = ReasoningFormat(name="think")
