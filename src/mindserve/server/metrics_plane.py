"""Route of the metrics plane: `GET /metrics` in Prometheus' text format."""

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mindserve.server.state import ServerState


def metrics_routes(state: ServerState) -> list[BaseRoute]:
    """The plane's routes."""

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(state.metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return [Route("/metrics", metrics)]
