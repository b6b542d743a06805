"""The configurations in docs/scale-out.md: the first is complete, the others are what changes in it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mindserve.settings.mindie import from_json
from mindserve.settings.values import EngineKind, ParallelSettings

DOCUMENT = Path(__file__).parents[2] / "docs" / "scale-out.md"
BLOCKS: list[Any] = [
    json.loads(text) for text in re.findall(r"^```json\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
]
SPREADS = [
    ParallelSettings(),
    ParallelSettings(tensor=4),
    ParallelSettings(tensor=4, data=2),
    ParallelSettings(tensor=8, pipeline=2, spans_nodes=True),
]


def merged(base: Any, change: Any) -> Any:
    if isinstance(base, Mapping):
        return {key: merged(base[key], change[key]) if key in change else base[key] for key in base} | {
            key: change[key] for key in change if key not in base
        }
    return [merged(*pair) for pair in zip(base, change, strict=True)] if isinstance(base, list) else change


@pytest.mark.parametrize(("change", "spread"), list(zip(BLOCKS, SPREADS, strict=True)))
def test_a_configuration_means_what_the_text_says(change: Any, spread: ParallelSettings) -> None:
    settings = from_json(merged(BLOCKS[0], change), home=Path("/home"))
    assert settings.engine.kind is EngineKind.VLLM
    assert settings.engine.parallel == spread
    assert settings.engine.vllm == {"gpu_memory_utilization": 0.9}
    assert settings.warnings == ()
