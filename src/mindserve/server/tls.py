"""Mutual TLS: a plane's certificate, its clients' authorities and the revocation lists, checked at start."""

import contextlib
import ssl
from pathlib import Path

from mindserve.errors import ConfigError
from mindserve.settings.values import TlsFiles


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """A context that asks every client for a certificate. Raises ConfigError naming the file that does not do."""
    for path in (*files.ca, files.certificate, files.key, *files.revocation_lists):
        _check_readable(path)
    context = _with_certificate(files)
    _check_dates(files)
    context.verify_mode = ssl.CERT_REQUIRED
    for path in files.ca:
        _load_authority(context, path)
    for path in files.revocation_lists:
        _load_authority(context, path)
    if files.revocation_lists:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as e:
        raise ConfigError(f"The TLS file {path} cannot be read: {e.strerror}.", param=str(path)) from e


def _with_certificate(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (ssl.SSLError, ValueError) as e:
        reason = getattr(e, "reason", None) or str(e)
        raise ConfigError(
            f"The certificate {files.certificate} and the key {files.key} cannot be used: {reason}.",
            param=str(files.certificate),
        ) from e
    return context


def _no_password() -> str:
    """Without it OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted; give the server an unencrypted one")


def _load_authority(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError as e:
        raise ConfigError(f"The TLS file {path} cannot be used: {e.reason or e}.", param=str(path)) from e


def _check_dates(files: TlsFiles) -> None:
    """Refuse an expired or not yet valid certificate by greeting ourselves in memory.

    The standard library reads dates only while it verifies; the client side here trusts exactly this certificate.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _load_authority(client, files.certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server)
    there = _with_certificate(files).wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(4):
            for side in (here, there):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
    except ssl.SSLCertVerificationError as e:
        raise ConfigError(
            f"The certificate {files.certificate} cannot be used: {e.verify_message}.", param=str(files.certificate)
        ) from e
