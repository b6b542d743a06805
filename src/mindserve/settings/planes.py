"""Where the three planes listen, with which certificates (ServerConfig's addresses, ports and tls keys)."""

from ipaddress import ip_address
from pathlib import Path

from mindserve.errors import ConfigError
from mindserve.settings.keys import Section
from mindserve.settings.values import Plane, TlsFiles


def read_planes(server: Section, *, home: Path) -> tuple[Plane, Plane, Plane]:
    """Service, management and metrics plane. Raises ConfigError."""
    host = _address(server, "ipAddress")
    # MindIE's shipped file says 127.0.0.2 and 1026; where the keys are absent the service plane's address counts.
    management_host = _address(server, "managementIpAddress") if server.gives("managementIpAddress") else host
    port, metrics_port = server.integer("port"), server.integer("metricsPort")
    management_port = server.integer("managementPort") if server.gives("managementPort") else port
    if host == management_host and port == metrics_port != management_port:
        raise server.refuse("metricsPort", "may equal port only where managementPort does too")
    places = (("", host, port), ("management", management_host, management_port))
    planes: dict[tuple[str, int], Plane] = {}
    for prefix, plane_host, plane_port in (*places, ("metrics", management_host, metrics_port)):
        if (plane_host, plane_port) not in planes:
            tls = _tls_files(server, prefix, home) if server.flag("httpsEnabled") else None
            planes[plane_host, plane_port] = Plane(host=plane_host, port=plane_port, tls=tls)
    return planes[host, port], planes[management_host, management_port], planes[management_host, metrics_port]


def _address(server: Section, name: str) -> str:
    value = server.text(name)
    try:
        address = ip_address(value)
    except ValueError:
        raise server.refuse(name, "must be an IPv4 or IPv6 address") from None
    if address.is_unspecified and not server.flag("allowAllZeroIpListening"):
        raise server.refuse(name, "may be an all-zero address only with allowAllZeroIpListening")
    return value


def _tls_files(server: Section, prefix: str, home: Path) -> TlsFiles:
    start = f"{prefix}Tls" if prefix else "tls"
    ca_dir = home / (server.text(f"{start}CaPath") or "")
    crl_dir = home / (server.text(f"{start}CrlPath") or "")
    ca = server.strings(f"{start}CaFile")
    if not 1 <= len(ca) <= 3:
        raise _absent(server, f"{start}CaFile", "1 to 3 files of certificate authorities")
    lists = server.strings(f"{start}CrlFiles")
    if len(lists) > 3:
        raise server.refuse(f"{start}CrlFiles", "must name at most 3 files")
    for name in (f"{start}Cert", f"{start}Pk"):
        if not server.value(name):
            raise _absent(server, name, "a file")
    return TlsFiles(
        ca=tuple(ca_dir / name for name in ca),
        certificate=home / server.text(f"{start}Cert"),
        key=home / server.text(f"{start}Pk"),
        revocation_lists=tuple(crl_dir / name for name in lists),
    )


def _absent(server: Section, name: str, what: str) -> ConfigError:
    path = server.path_of(name)
    return ConfigError(f"{path} must name {what}, because ServerConfig.httpsEnabled is on.", param=path)
