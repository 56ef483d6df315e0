"""Certificates for tests: a server's, clients', and the settings that name them."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme
from cryptography import x509

from holdfast.config import TlsSettings


class Certificates:
    """An authority, and what it signed, below `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.authority = trustme.CA()
        self.authority_file = path / "ca.pem"
        self.authority.cert_pem.write_to_path(self.authority_file)
        server = self.authority.issue_cert("localhost", "127.0.0.1")
        server.cert_chain_pems[0].write_to_path(path / "server.pem")
        server.private_key_pem.write_to_path(path / "server.key")

    def settings(self, clients: str = "optional") -> TlsSettings:
        return TlsSettings(
            certificate_file=self._path / "server.pem",
            key_file=self._path / "server.key",
            client_ca_file=self.authority_file if clients != "none" else None,
            client_certificates=clients,
        )

    def client(self, name: str = "", authority: trustme.CA | None = None) -> tuple[ssl.SSLContext, str]:
        """A context that trusts the server, with a certificate for `name` if given, and that one's subject."""
        context = ssl.create_default_context(cafile=self.authority_file)
        if not name:
            return context, ""
        certificate = (authority or self.authority).issue_cert(f"{name}@example.com", common_name=name)
        certificate.configure_cert(context)
        found = x509.load_pem_x509_certificate(certificate.cert_chain_pems[0].bytes())
        return context, found.subject.rfc4514_string()
