"""TLS: real handshakes, over memory instead of sockets."""

from __future__ import annotations

import datetime
import os
import ssl
from pathlib import Path

import msgspec
import pytest
import structlog
import trustme

from holdfast.auth import tls
from holdfast.config import TlsSettings
from holdfast.errors import InvalidConfig


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> TlsSettings:
    issue(authority, tmp_path, "localhost")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return TlsSettings(certificate_file=tmp_path / "cert.pem", key_file=tmp_path / "key.pem")


def issue(authority: trustme.CA, directory: Path, name: str) -> None:
    certificate = authority.issue_cert(name)
    certificate.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    certificate.private_key_pem.write_to_path(directory / "key.pem")


def client(authority: trustme.CA, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if certificate:
        certificate.configure_cert(context)
    return context


def shake(
    server: ssl.SSLContext | None, client: ssl.SSLContext, name: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake, and after the server has read once: it is then that TLS 1.3 checks the client."""
    assert server is not None
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (server.wrap_bio(up, down, server_side=True), client.wrap_bio(down, up, server_hostname=name))
    todo = list(ends)
    while todo:
        for end in reversed(ends):
            if end in todo:
                try:
                    end.do_handshake()
                    todo.remove(end)
                except ssl.SSLWantReadError:
                    continue
    ends[1].write(b"hello")
    assert ends[0].read(5) == b"hello"
    return ends


def problem(settings: TlsSettings) -> str:
    with pytest.raises(InvalidConfig) as caught:
        tls.server_context(settings)
    return str(caught.value)


def test_without_a_certificate_there_is_no_tls() -> None:
    assert tls.server_context(TlsSettings()) is None


def test_a_client_that_trusts_the_authority_is_served(files: TlsSettings, authority: trustme.CA) -> None:
    server, _ = shake(tls.server_context(files), client(authority))
    assert server.version() == "TLSv1.3"
    assert tls.peer_subject(server) is None
    assert tls.peer_subject(None) is None


def test_a_client_of_the_past_is_refused(files: TlsSettings, authority: trustme.CA) -> None:
    old = client(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake(tls.server_context(files), old)[0].version() == "TLSv1.2"
    newer = msgspec.structs.replace(files, minimum_version="1.3")
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol|version"):
        shake(tls.server_context(newer), old)


def test_a_clients_certificate_gives_its_subject(files: TlsSettings, authority: trustme.CA, tmp_path: Path) -> None:
    asking = msgspec.structs.replace(files, client_ca_file=tmp_path / "ca.pem", client_certificates="optional")
    named = authority.issue_cert("worker-1.example", common_name="worker-1", organization_name="Acme, Inc.")
    server, _ = shake(tls.server_context(asking), client(authority, named))
    subject = tls.peer_subject(server)
    assert subject is not None
    assert "CN=worker-1" in subject.split(",")
    assert "O=Acme\\, Inc." in subject, "a comma in a name cannot pass for the start of the next part"
    server, _ = shake(tls.server_context(asking), client(authority))
    assert tls.peer_subject(server) is None


def test_a_client_without_a_certificate_or_with_a_strangers_is_refused(
    files: TlsSettings, authority: trustme.CA, tmp_path: Path
) -> None:
    required = msgspec.structs.replace(files, client_ca_file=tmp_path / "ca.pem", client_certificates="required")
    with pytest.raises(ssl.SSLError, match=r"(?i)peer did not return a certificate"):
        shake(tls.server_context(required), client(authority))
    for choice in ("optional", "required"):
        asking = msgspec.structs.replace(required, client_certificates=choice)
        stranger = trustme.CA().issue_cert("worker-1.example", common_name="worker-1")
        with pytest.raises(ssl.SSLError, match=r"(?i)verify failed|unknown ca"):
            shake(tls.server_context(asking), client(authority, stranger))


def test_an_expired_client_certificate_is_refused(files: TlsSettings, authority: trustme.CA, tmp_path: Path) -> None:
    required = msgspec.structs.replace(files, client_ca_file=tmp_path / "ca.pem", client_certificates="required")
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    expired = authority.issue_cert("old.example", not_before=past, not_after=past + datetime.timedelta(days=1))
    with pytest.raises(ssl.SSLError, match=r"(?i)expired|verify failed"):
        shake(tls.server_context(required), client(authority, expired))


def test_what_is_wrong_with_the_files_is_said(files: TlsSettings, tmp_path: Path, authority: trustme.CA) -> None:
    change = msgspec.structs.replace
    missing = tmp_path / "missing.pem"
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("this is no certificate")
    other = tmp_path / "other.pem"
    authority.issue_cert("other").private_key_pem.write_to_path(other)
    ca = tmp_path / "ca.pem"

    assert "tls.certificate_file" in problem(change(files, certificate_file=missing))
    assert "No such file" in problem(change(files, certificate_file=missing))
    assert "tls.key_file" in problem(change(files, key_file=missing))
    assert "in PEM are needed" in problem(change(files, certificate_file=garbage))
    assert "does not belong to the certificate" in problem(change(files, key_file=other))
    assert "needs tls.client_ca_file" in problem(change(files, client_certificates="required"))
    assert "nobody is asked" in problem(change(files, client_ca_file=ca))
    asking = change(files, client_certificates="optional")
    assert "No such file" in problem(change(asking, client_ca_file=missing))
    assert "certificates in PEM" in problem(change(asking, client_ca_file=garbage))
    assert "of no use without" in problem(TlsSettings(key_file=other))
    assert "needs tls.certificate_file" in problem(TlsSettings(client_certificates="required"))


def test_a_key_with_a_passphrase_is_refused_instead_of_asking_at_the_terminal(
    files: TlsSettings, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    locked = tmp_path / "locked.pem"
    assert files.key_file is not None
    key = serialization.load_pem_private_key(files.key_file.read_bytes(), None)
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hush"),
        )
    )
    assert "passphrase" in problem(msgspec.structs.replace(files, key_file=locked))


def test_a_renewed_certificate_is_used_without_a_restart(
    files: TlsSettings, tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.0)
    context = tls.server_context(files)
    shake(context, client(authority))
    issue(authority, tmp_path, "new.example")
    shake(context, client(authority))  # notices
    shake(context, client(authority), "new.example")
    with pytest.raises(ssl.SSLError, match=r"(?i)hostname mismatch|certificate"):
        shake(context, client(authority), "localhost")


def test_a_half_renewed_pair_is_not_used(
    files: TlsSettings, tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.0)
    context = tls.server_context(files)
    old_key = (tmp_path / "key.pem").read_bytes()
    issue(authority, tmp_path, "new.example")
    (tmp_path / "key.pem").rename(tmp_path / "new-key.pem")
    (tmp_path / "key.pem").write_bytes(old_key)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            shake(context, client(authority))
    assert [line["log_level"] for line in logs] == ["error"]
    os.replace(tmp_path / "new-key.pem", tmp_path / "key.pem")  # noqa: PTH105 - as the renewing tool does it
    shake(context, client(authority))
    shake(context, client(authority), "new.example")
