"""The server's side of TLS, the same for all fronts, and the subject of a client's certificate."""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography import x509

from holdfast.config import TlsSettings
from holdfast.errors import InvalidConfig

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_VERIFICATION = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(settings: TlsSettings) -> ssl.SSLContext | None:
    """What fronts give to their listener; None without a certificate. Raises InvalidConfig that names the setting."""
    if settings.certificate_file is None:
        _refuse_leftovers(settings)
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.minimum_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    load_certificate(context, settings)
    if settings.client_certificates != "none":
        if settings.client_ca_file is None:
            raise _problem("client_certificates", settings.client_certificates, "it needs tls.client_ca_file")
        _load_authorities(context, settings.client_ca_file)
        context.verify_mode = _VERIFICATION[settings.client_certificates]
    elif settings.client_ca_file is not None:
        raise _problem(
            "client_ca_file", settings.client_ca_file, "nobody is asked for a certificate (tls.client_certificates)"
        )
    return context


def load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Loads certificate and key, also into a context in use: connections made from then on get the new ones."""
    certificate, key = settings.certificate_file, settings.key_file
    assert certificate is not None
    _readable("certificate_file", certificate)
    if key is not None:
        _readable("key_file", key)
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except ssl.SSLError as error:
        reason = {
            "KEY_VALUES_MISMATCH": "the private key does not belong to the certificate",
            "NO_START_LINE": "a certificate and a private key in PEM are needed",
            "PEM_LIB": "a certificate and a private key in PEM are needed",
        }.get(error.reason or "", error.reason or str(error))
        raise _problem("certificate_file", certificate, reason) from error
    except _PassphraseNeeded as error:
        raise _problem("key_file", key or certificate, "the private key has a passphrase; remove it") from error


def peer_subject(ssl_object: ssl.SSLObject | ssl.SSLSocket | None) -> str | None:
    """The subject of the client's certificate as RFC 4514 writes it (`CN=worker-1,O=Acme`), or None without one.

    The handshake has checked the certificate. `openssl x509 -noout -subject -nameopt RFC2253` shows the same text.
    """
    certificate = ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
    if certificate is None:
        return None
    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()


def _refuse_leftovers(settings: TlsSettings) -> None:
    for name in ("key_file", "client_ca_file"):
        if (path := getattr(settings, name)) is not None:
            raise _problem(name, path, "it is of no use without tls.certificate_file")
    if settings.client_certificates != "none":
        raise _problem("client_certificates", settings.client_certificates, "it needs tls.certificate_file")


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    _readable("client_ca_file", path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise _problem("client_ca_file", path, "certificates in PEM are needed") from error


def _readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise _problem(name, path, error.strerror or str(error)) from error


class _PassphraseNeeded(Exception):
    """OpenSSL asked for a passphrase; by default it would ask at the terminal and wait there."""


def _no_passphrase() -> str:
    raise _PassphraseNeeded


def _problem(name: str, value: object, problem: str) -> InvalidConfig:
    return InvalidConfig(field=f"tls.{name}", value=str(value), problem=problem)
