"""The server that most tests share."""

from collections.abc import Iterator

import pytest

from tests.api.running import Running, running


@pytest.fixture(scope="package")
def server() -> Iterator[Running]:
    """In vLLM mode, with the answers of `running.ANSWERS`."""
    with running() as started:
        yield started


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test did to the shared server, no request survives it."""
    yield
    if "server" in request.fixturenames:
        from tests.api.running import eventually  # noqa: PLC0415

        eventually(request.getfixturevalue("server").is_idle)
