"""Who may stop the server or change its adapters."""

from typing import Any

import pytest

from mindserve.server.management_plane import is_operator
from mindserve.settings.values import Plane, ServerSettings

SHARED = ServerSettings()
OWN = ServerSettings(management=Plane(host="10.0.0.1", port=1026))
KEYED = ServerSettings(api_key="k")


def scope(client: str, *headers: tuple[bytes, bytes], scheme: str = "http") -> dict[str, Any]:
    return {"type": "http", "scheme": scheme, "client": (client, 5), "headers": list(headers)}


@pytest.mark.parametrize(
    ("asked", "server", "expected"),
    [
        (scope("127.0.0.1"), SHARED, True),
        (scope("::1"), SHARED, True),
        (scope("127.0.0.1", (b"sec-fetch-site", b"none")), SHARED, True),
        (scope("10.0.0.9"), SHARED, False),
        (scope("127.0.0.1", (b"origin", b"https://evil.example")), SHARED, False),
        (scope("127.0.0.1", (b"sec-fetch-site", b"cross-site")), SHARED, False),
        (scope("10.0.0.9", scheme="https"), SHARED, True),
        (scope("10.0.0.9"), KEYED, True),
        (scope("10.0.0.9"), OWN, True),
    ],
)
def test_is_operator(asked: dict[str, Any], server: ServerSettings, expected: bool) -> None:
    assert is_operator(asked, server) is expected
