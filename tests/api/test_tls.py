"""Mutual TLS: who gets in, and files that keep the server from starting."""

import datetime
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes

from mindserve.errors import ConfigError
from mindserve.server.app import PlaneKind
from mindserve.server.lifecycle import bind
from mindserve.settings.values import Plane, Settings, TlsFiles
from tests.api.running import PATH, Running, chat, on_planes, running, settings_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Pki:
    """An authority, a server's files, and clients of every kind."""

    authority: trustme.CA
    files: TlsFiles
    good: trustme.LeafCert
    revoked: trustme.LeafCert
    stranger: trustme.LeafCert

    def settings(self) -> Settings:
        plane = Plane(host="127.0.0.1", port=0, tls=self.files)
        return on_planes(settings_for(), plane, plane, plane)

    def client(self, identity: trustme.LeafCert | None, *, checks_name: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.check_hostname = checks_name
        self.authority.configure_trust(context)
        if identity is not None:
            identity.configure_cert(context)
        return context


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    folder = tmp_path_factory.mktemp("pki")
    authority = trustme.CA()
    identity = authority.issue_cert("127.0.0.1")
    revoked = authority.issue_cert("revoked@test")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    identity.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in identity.cert_chain_pems))
    (folder / "crl.pem").write_bytes(revocation_list(authority, revoked))
    return Pki(
        authority=authority,
        files=TlsFiles(
            ca=(folder / "ca.pem",),
            certificate=folder / "cert.pem",
            key=folder / "key.pem",
            revocation_lists=(folder / "crl.pem",),
        ),
        good=authority.issue_cert("client@test"),
        revoked=revoked,
        stranger=trustme.CA().issue_cert("client@test"),
    )


@pytest.fixture(scope="module")
def secure(pki: Pki) -> Iterator[Running]:
    with running(pki.settings()) as server:
        yield server


def revocation_list(authority: trustme.CA, revoked: trustme.LeafCert) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    serial = x509.load_pem_x509_certificate(revoked.cert_chain_pems[0].bytes()).serial_number
    entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
    builder = x509.CertificateRevocationListBuilder().issuer_name(certificate_of(authority).subject)
    builder = builder.last_update(now).next_update(now + datetime.timedelta(days=1)).add_revoked_certificate(entry)
    return builder.sign(key_of(authority), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def certificate_of(authority: trustme.CA) -> x509.Certificate:
    return x509.load_pem_x509_certificate(authority.cert_pem.bytes())


def key_of(authority: trustme.CA) -> CertificateIssuerPrivateKeyTypes:
    key = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def dated(authority: trustme.CA, key: Path, *, first_day: int, last_day: int) -> bytes:
    """A server certificate for `key`, valid between two days counted from today."""
    now = datetime.datetime.now(datetime.UTC)
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "server")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(certificate_of(authority).subject)
    builder = builder.public_key(loaded.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now + datetime.timedelta(days=first_day))
    builder = builder.not_valid_after(now + datetime.timedelta(days=last_day))
    return builder.sign(key_of(authority), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_known_client_gets_in(pki: Pki, secure: Running) -> None:
    assert secure.url.startswith("https://")
    with httpx.Client(verify=pki.client(pki.good), trust_env=False) as client:
        assert client.post(secure.url + PATH, json=chat()).status_code == 200
        with client.stream("POST", secure.url + PATH, json=chat(stream=True)) as response:
            assert response.read().endswith(b"data: [DONE]\n\n")
        assert client.get(secure.url + "/health").status_code == 200


@pytest.mark.parametrize("who", ["nobody", "stranger", "revoked"])
def test_others_do_not(pki: Pki, secure: Running, who: str) -> None:
    identity = {"nobody": None, "stranger": pki.stranger, "revoked": pki.revoked}[who]
    with httpx.Client(verify=pki.client(identity), trust_env=False) as client, pytest.raises(httpx.TransportError):
        client.get(secure.url + "/health")


def test_each_plane_has_clients_of_its_own(pki: Pki, tmp_path: Path) -> None:
    """A client of the service plane is a stranger to the management plane, whose authority is another."""
    operators = trustme.CA()
    operators.cert_pem.write_to_path(tmp_path / "operators.pem")
    operator = operators.issue_cert("operator@test")
    service = Plane(host="127.0.0.1", port=0, tls=pki.files)
    files = replace(pki.files, ca=(tmp_path / "operators.pem",), revocation_lists=())
    management, metrics = (Plane(host=host, port=0, tls=files) for host in ("127.0.0.2", "127.0.0.3"))
    own = on_planes(settings_for(), service, management, metrics)
    with running(own) as server:
        for plane, path, insider, outsider in (
            (PlaneKind.SERVICE, "/v1/models", pki.good, operator),
            (PlaneKind.MANAGEMENT, "/health", operator, pki.good),
            (PlaneKind.METRICS, "/metrics", operator, pki.good),
        ):
            with httpx.Client(verify=pki.client(insider, checks_name=False), trust_env=False) as client:
                assert client.get(server.urls[plane] + path).status_code == 200
            with (
                httpx.Client(verify=pki.client(outsider, checks_name=False), trust_env=False) as client,
                pytest.raises(httpx.TransportError),
            ):
                client.get(server.urls[plane] + path)


def test_plain_http_does_not(secure: Running) -> None:
    with secure.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not connection.recv(100).startswith(b"HTTP/1.1 200")


def test_old_tls_does_not(pki: Pki, secure: Running) -> None:
    greeting = "0100002b" + "0302" + "00" * 32 + "00" + "0004002fc013" + "0100"  # TLS 1.1 and nothing newer
    with secure.connect() as connection:
        connection.sendall(bytes.fromhex("160301002f" + greeting))
        assert connection.recv(1) in (b"", b"\x15")  # the end or an alert, but no greeting
    context = pki.client(pki.good)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(secure.address) as plain:
        assert context.wrap_socket(plain, server_hostname="127.0.0.1").version() in ("TLSv1.2", "TLSv1.3")


def with_files(pki: Pki, **files: Path | tuple[Path, ...]) -> Settings:
    given = {"ca": pki.files.ca, "certificate": pki.files.certificate, "key": pki.files.key, **files}
    plane = Plane(port=0, tls=TlsFiles(**given))  # type: ignore[arg-type]
    return on_planes(settings_for(), plane, plane, plane)


def refusal(settings: Settings) -> str:
    with pytest.raises(ConfigError) as caught:
        bind(settings.server)
    return caught.value.message


def test_dates_are_checked_at_start(pki: Pki, tmp_path: Path) -> None:
    for first_day, last_day, text in ((-10, -1, "expired"), (1, 10, "not yet valid")):
        file = tmp_path / f"{last_day}.pem"
        file.write_bytes(dated(pki.authority, pki.files.key, first_day=first_day, last_day=last_day))
        message = refusal(with_files(pki, certificate=file))
        assert str(file) in message
        assert text in message
    file.write_bytes(dated(pki.authority, pki.files.key, first_day=-1, last_day=10))
    with running(with_files(pki, certificate=file)):
        pass


def test_files_that_are_missing_or_do_not_fit(pki: Pki, tmp_path: Path) -> None:
    missing, garbage, encrypted = tmp_path / "none.pem", tmp_path / "garbage.pem", tmp_path / "encrypted.pem"
    other = tmp_path / "other.pem"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    pki.good.private_key_pem.write_to_path(other)
    key = serialization.load_pem_private_key(pki.files.key.read_bytes(), None)
    encoding, layout = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted.write_bytes(key.private_bytes(encoding, layout, serialization.BestAvailableEncryption(b"x")))
    for settings, text in (
        (with_files(pki, key=missing), "none.pem cannot be read"),
        (with_files(pki, certificate=missing), "none.pem cannot be read"),
        (with_files(pki, ca=(missing,)), "none.pem cannot be read"),
        (with_files(pki, revocation_lists=(missing,)), "none.pem cannot be read"),
        (with_files(pki, key=other), "MISMATCH"),
        (with_files(pki, key=garbage), "garbage.pem"),
        (with_files(pki, certificate=garbage), "garbage.pem"),
        (with_files(pki, ca=(garbage,)), "garbage.pem"),
        (with_files(pki, revocation_lists=(garbage,)), "garbage.pem"),
        (with_files(pki, key=encrypted), "encrypted"),
    ):
        assert text in refusal(settings)
