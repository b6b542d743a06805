"""Reference tokenisations and renderings that lie in tests/data/goldens."""

import json
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "data"
GOLDENS = DATA / "goldens"
VOCABULARIES = DATA / "tokenizers"

FAMILIES = ("glm", "glm4", "llama", "llama-untied", "mistral", "qwen2", "qwen2-moe", "qwen3", "qwen3-moe")
GGUF_FAMILIES = ("glm4", "llama", "mistral", "qwen2", "qwen3")


@cache
def prompts(family: str, kind: str) -> tuple[dict[str, Any], ...]:
    """The prompts of one kind: `text` (tokenised with special tokens added) or `chat` (rendered, then tokenised)."""
    golden = json.loads((GOLDENS / family / "golden.json").read_text("utf-8"))
    return tuple(prompt for prompt in golden["prompts"] if prompt["kind"] == kind)
