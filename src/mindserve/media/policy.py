"""Which servers media may come from (contract: HTTP/HTTPS access mode, decisions R-C17).

A host must be listed, and besides every address that its name resolves to must be public, unless that very address is
listed. Numeric spellings that resolvers accept but standards do not (`127.1`, `0x7f000001`) are refused as hosts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

from mindserve.contract.failure import failure
from mindserve.contract.request import PartKind
from mindserve.errors import InvalidRequest
from mindserve.media.source import MAX_ADDRESS_CHARS, TOO_LONG, check_extension

NOT_LISTED = "The media URL domain is not allowed: Domain '{host}' is not in allowed domain list"
NOT_PUBLIC = "The media URL domain is not allowed: Domain '{host}' resolves to an address that is not public"
UNRESOLVED = "Download error: Domain '{host}' can not be resolved"
MALFORMED = "The media URL is malformed"
HAS_CREDENTIALS = "The media URL must not contain user information"

Address = IPv4Address | IPv6Address

_FORBIDDEN_CHARS: Final = re.compile(r"[\x00-\x20\x7f\\]")
_HOST_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_NUMERIC_ENDING: Final = re.compile(r"(^|\.)(\d+|0x[0-9a-f]*)$")
_PLATFORM_ADDRESSES: Final = frozenset({ip_address("168.63.129.16")})
"""Public by number, but answered by the cloud platform that hosts the machine."""
_NOT_PUBLIC: Final = tuple(
    ip_network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
"""Protocol assignments, gateways between the two protocols and documentation, whatever the library knows of them."""
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One address on the web that the policy lets through, the resolved addresses not yet checked."""

    url: str
    is_tls: bool
    host: str
    """Lower case, ASCII."""
    port: int
    path: str
    """With the query."""

    @property
    def authority(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressPolicy:
    """The operator's list, read anew for every request."""

    hosts: frozenset[str]
    addresses: frozenset[Address]

    @classmethod
    def parse(cls, allowed_domains: str) -> Self:
        """Names and addresses separated by commas, as in `ALLOWED_MEDIA_DOMAINS_ENV`. An empty list allows nothing."""
        entries = [entry.strip().strip("[]").lower() for entry in allowed_domains.split(",")]
        addresses = {address for entry in entries if (address := as_address(entry)) is not None}
        hosts = {_ascii_host(entry) for entry in entries if entry and as_address(entry) is None}
        return cls(hosts=frozenset(host for host in hosts if host), addresses=frozenset(addresses))

    def check_url(self, url: str, kind: PartKind) -> Target:
        """What can be said without a look-up: scheme, host, list, extension. Raises InvalidRequest."""
        if len(url) >= MAX_ADDRESS_CHARS:
            raise failure(TOO_LONG.format(limit=MAX_ADDRESS_CHARS, length=len(url)), param="messages")
        parts = _split(url)
        host = _ascii_host(parts.hostname or "")
        self._check_listed(host, shown=parts.hostname or "")
        if "@" in parts.netloc:
            raise InvalidRequest(HAS_CREDENTIALS, param="messages")
        check_extension(parts.path, kind)
        is_tls = parts.scheme == "https"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return Target(url=url, is_tls=is_tls, host=host, port=_port(parts) or (443 if is_tls else 80), path=path)

    def check_addresses(self, host: str, answers: Sequence[str]) -> list[Address]:
        """All addresses of `host`, or none: one that is not public spoils the rest. Raises InvalidRequest."""
        addresses = [as_address(answer) for answer in answers]
        if not addresses:
            raise failure(UNRESOLVED, param="messages", host=host)
        if not all(address is not None and self._may_connect(address) for address in addresses):
            raise failure(NOT_PUBLIC, param="messages", host=host)
        return [address for address in addresses if address is not None]

    def _check_listed(self, host: str, *, shown: str) -> None:
        address = as_address(host)
        if address is not None:
            is_listed = address in self.addresses
        else:
            is_listed = host in self.hosts and _NUMERIC_ENDING.search(host) is None
        if not is_listed:
            raise failure(NOT_LISTED, param="messages", host=shown)

    def _may_connect(self, address: Address) -> bool:
        return address in self.addresses or is_public(address)


def is_public(address: Address) -> bool:
    """Whether an address belongs to the open internet: not this machine, its networks, its platform or a gateway."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    if address in _PLATFORM_ADDRESSES or address.is_multicast or address.is_reserved:
        return False
    return address.is_global and not any(address in network for network in _NOT_PUBLIC)


def as_address(text: str) -> Address | None:
    """The address that `text` is, if any; IPv4 in IPv6 clothes is IPv4. One with a zone (`fe80::1%eth0`) is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return None
        return address.ipv4_mapped or address
    return address


def _ascii_host(host: str) -> str:
    """The name as look-ups see it; empty when it is none."""
    if as_address(host) is not None:
        return host
    try:
        name = host.encode("idna").decode("ascii").lower() if not host.isascii() else host.lower()
    except UnicodeError:
        return ""
    return name if as_address(name) is not None or _HOST_NAME.fullmatch(name) else ""


def _split(url: str) -> SplitResult:
    """Characters over which parsers disagree are refused."""
    if _FORBIDDEN_CHARS.search(url) is not None:
        raise InvalidRequest(MALFORMED, param="messages")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidRequest(MALFORMED, param="messages") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest(MALFORMED, param="messages")
    return parts


def _port(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError as error:
        raise InvalidRequest(MALFORMED, param="messages") from error
    if port == 0:
        raise InvalidRequest(MALFORMED, param="messages")
    return port
