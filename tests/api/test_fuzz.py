"""Ten thousand damaged requests on one server: each gets a whole, clean answer, and the server goes on as before."""

import http.client
import itertools
import json
from dataclasses import replace

from tests.api.running import MODEL, PATH, chat, events, eventually, running, settings_for
from tests.contract.mutations import Mutant, mutants

REQUESTS = 10_000
STATUSES = {200, 422, 424}


def test_mutants_get_clean_answers() -> None:
    settings = settings_for(e2e_timeout_s=60)
    # Some mutants ask for as many tokens as there are.
    settings = replace(settings, scheduler=replace(settings.scheduler, max_iter_times=8))
    seen: dict[int, int] = {}
    with running(settings) as server:
        connection = http.client.HTTPConnection(*server.address, timeout=60)
        for number, mutant in enumerate(itertools.islice(mutants(20, model=MODEL), REQUESTS)):
            connection.request("POST", PATH, body=mutant.body)
            response = connection.getresponse()
            seen[response.status] = seen.get(response.status, 0) + 1
            check(mutant, response.status, response.headers.get("content-type", ""), response.read())
            if number % 100 == 99:
                connection.request("POST", PATH, body=json.dumps(chat(max_tokens=3)))
                good = connection.getresponse()
                assert json.loads(good.read())["choices"][0]["message"]["content"] == "Hel"
        connection.close()
        eventually(server.is_idle)
        assert server.metric("request_failed_total") == 0
    assert seen[200] > REQUESTS // 20
    assert seen[422] > REQUESTS // 2


def check(mutant: Mutant, status: int, kind: str, body: bytes) -> None:
    """A known status, and a body of the shape that goes with it."""
    assert status in STATUSES, (status, mutant.history, mutant.body[:500], body[:500])
    if kind.startswith("text/event-stream"):
        assert events(body)[-1] == "[DONE]", (mutant.history, mutant.body[:500])
    elif status == 200:
        assert json.loads(body)["object"] == "chat.completion"
    else:
        error = json.loads(body)
        assert set(error) == {"error", "error_type"}
        assert 0 < len(error["error"]) < 1000, (mutant.history, error["error"][:500])
