"""Downloads under the address policy. The only module of the house that speaks HTTP as a client.

A name is looked up once, every answer is checked, and the connection goes to a checked address with the name in the
Host header and the TLS handshake: what the name says later does not matter. Redirects are followed by hand, each hop
checked like the first address.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urljoin

import certifi
import httpx

from mindserve.contract.request import PartKind
from mindserve.errors import InvalidRequest
from mindserve.media.content import Content
from mindserve.media.limits import MediaLimits
from mindserve.media.policy import Address, AddressPolicy, Target, as_address

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Host name and port to the texts of all its addresses; raises OSError when there are none."""

FAILED: Final = "Download error"
CONNECT_TIMEOUT: Final = "Connection timed out after {seconds:g} seconds."
READ_TIMEOUT: Final = "Read timed out after {seconds:g} seconds."

_OK: Final = 200
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MAX_ADDRESSES: Final = 4
"""Addresses of one name that are tried."""
_CHUNK_BYTES: Final = 256 * 1024


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of `host` that the system knows."""
    loop = asyncio.get_running_loop()
    answers = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


def trusted_certificates() -> ssl.SSLContext:
    """The system's certificate authorities and the published ones."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


class Fetcher:
    """Downloads into `Content`. One connection per hop, never reused: no name borrows another one's."""

    def __init__(
        self, limits: MediaLimits, *, resolver: Resolver = resolve, certificates: ssl.SSLContext | None = None
    ) -> None:
        self._limits = limits
        self._resolver = resolver
        self._certificates = certificates or trusted_certificates()

    async def fetch(self, url: str, kind: PartKind, policy: AddressPolicy, content: Content) -> None:
        """Write what `url` serves into `content`. Raises InvalidRequest; cancelling closes the connection."""
        for _ in range(self._limits.max_redirects + 1):
            target = policy.check_url(url, kind)
            addresses = await self._addresses(target, policy)
            async with self._open(target, addresses) as response:
                if response.status_code not in _REDIRECTS:
                    return await self._receive(response, content)
                url = _next(url, response.headers.get("location", ""))
        raise _failure(f"{FAILED}: too many redirects")

    async def _addresses(self, target: Target, policy: AddressPolicy) -> list[Address]:
        literal = as_address(target.host)
        if literal is not None:
            return policy.check_addresses(target.host, [str(literal)])
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                answers = await self._resolver(target.host, target.port)
        except TimeoutError as error:
            raise _failure(CONNECT_TIMEOUT.format(seconds=self._limits.connect_timeout_s)) from error
        except (OSError, UnicodeError):
            answers = ()
        return policy.check_addresses(target.host, answers)

    @asynccontextmanager
    async def _open(self, target: Target, addresses: Sequence[Address]) -> AsyncGenerator[httpx.Response]:
        """The response from the first of `addresses` that answers; its body is not read yet."""
        async with self._client() as client:
            response = await self._send(client, target, addresses[:_MAX_ADDRESSES])
            try:
                yield response
            finally:
                await response.aclose()

    def _client(self) -> httpx.AsyncClient:
        limits = self._limits
        return httpx.AsyncClient(
            verify=self._certificates,
            trust_env=False,  # a proxy would look names up by itself
            follow_redirects=False,
            timeout=httpx.Timeout(limits.read_timeout_s, connect=limits.connect_timeout_s),
        )

    async def _send(self, client: httpx.AsyncClient, target: Target, addresses: Sequence[Address]) -> httpx.Response:
        reason: InvalidRequest | None = None
        for address in addresses:
            try:
                return await client.send(_request(client, target, address), stream=True)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                reason = self._reason(error)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise self._reason(error) from error
        raise reason or _failure(FAILED)

    async def _receive(self, response: httpx.Response, content: Content) -> None:
        """Bytes as they come: compressed transfer is neither asked for nor accepted."""
        if response.status_code != _OK:
            raise _failure(f"{FAILED}: the server answered {response.status_code}")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise _failure(f"{FAILED}: the server compressed its answer")
        declared = response.headers.get("content-length", "")
        if declared.isdecimal():
            content.announce(int(declared[:18]))
        try:
            async for chunk in response.aiter_raw(_CHUNK_BYTES):
                content.write(chunk)
        except httpx.HTTPError as error:
            raise self._reason(error) from error

    def _reason(self, error: httpx.HTTPError | httpx.InvalidURL) -> InvalidRequest:
        """Says no more of what lies behind an address than that it failed."""
        if isinstance(error, httpx.ConnectTimeout):
            return _failure(CONNECT_TIMEOUT.format(seconds=self._limits.connect_timeout_s))
        if isinstance(error, httpx.ReadTimeout):
            return _failure(READ_TIMEOUT.format(seconds=self._limits.read_timeout_s))
        return _failure(FAILED)


def _request(client: httpx.AsyncClient, target: Target, address: Address) -> httpx.Request:
    """To `address`, in the name of the target's host."""
    host = f"[{address}]" if address.version == 6 else str(address)
    scheme = "https" if target.is_tls else "http"
    headers = {"Host": target.authority, "Accept-Encoding": "identity", "Connection": "close"}
    return client.build_request(
        "GET",
        f"{scheme}://{host}:{target.port}{target.path}",
        headers=headers,
        extensions={"sni_hostname": target.host},
    )


def _next(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise _failure(FAILED) from error


def _failure(text: str) -> InvalidRequest:
    return InvalidRequest(text, param="messages")
