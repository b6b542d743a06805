from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mindserve.engine.scripted import Answer
from mindserve.settings.values import CachePrecision, EngineSettings, Precision

from .servers import Server, running, scripted, settings

STORY = "Once upon a time, \u00e9t\u00e9 \u2014 \U0001f600 \u4f60\u597d, a fox ran over the hill and did not come back."
CALLS = (
    "Let me see.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)


GOLDENS = Path(__file__).parents[1] / "data" / "goldens"


def _script(tokens_per_step: int) -> list[Answer]:
    def says(match: str | None, *texts: str) -> Answer:
        return Answer(match=match, sequences=texts, tokens_per_step=tokens_per_step)

    return [
        says("weather", CALLS),
        says("json please", '{"name": "Ann", "grown": true}', '{"name": "Bo", "grown": false}'),
        says("several", "One answer.", "Another, which is longer.", "And a third!"),
        says("why?", "Because."),
        says(None, STORY),
    ]


@contextmanager
def native(
    prepared_dir: Path, *, path: Path = GOLDENS / "qwen2" / "model", cache_bytes: int = 64 * 1024 * 1024, **values: Any
) -> Iterator[Server]:
    """The embedded engine with a tiny random model, in its exact mode."""
    engine = EngineSettings(
        precision=Precision.F32,
        cache_precision=CachePrecision.F32,
        prepared_dir=prepared_dir,
        cache_bytes=cache_bytes,
    )
    with running(settings(engine, path=path, **values)) as up:
        yield up


@pytest.fixture(scope="module", params=["one-token-per-step", "three-tokens-per-step", "tiny-model"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Every server that must answer the same streamed or not."""
    servers: dict[str, Callable[[], AbstractContextManager[Server]]] = {
        "one-token-per-step": lambda: scripted(*_script(1)),
        "three-tokens-per-step": lambda: scripted(*_script(3)),
        "tiny-model": lambda: native(tmp_path_factory.mktemp("prepared")),
    }
    with servers[request.param]() as up:
        yield up
