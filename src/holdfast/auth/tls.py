"""The server's side of TLS, the same for all fronts, and the subject of a client's certificate."""

from __future__ import annotations

import ssl
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

import structlog

from holdfast.config import TlsSettings
from holdfast.errors import InvalidConfig

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

LOOK_SECONDS: Final = 1.0

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
    _load_certificate(context, settings)
    if settings.client_certificates != "none":
        if settings.client_ca_file is None:
            raise _problem("client_certificates", settings.client_certificates, "it needs tls.client_ca_file")
        _load_authorities(context, settings.client_ca_file)
        context.verify_mode = _VERIFICATION[settings.client_certificates]
    elif settings.client_ca_file is not None:
        raise _problem(
            "client_ca_file", settings.client_ca_file, "nobody is asked for a certificate (tls.client_certificates)"
        )
    context.sni_callback = _Renewal(settings, context)
    return context


class CertificateWatch:
    """Looks, at most once a second, whether certificate or key have changed. A pair that does not fit (one file is new,
    the other not yet) is not taken: it is tried in a context of its own first."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._stamps = self._read_stamps()
        self._checked_at = time.monotonic()

    def is_changed(self) -> bool:
        """Whether there is another pair than when it was last asked, and it is good."""
        if time.monotonic() - self._checked_at < LOOK_SECONDS:
            return False
        self._checked_at = time.monotonic()
        stamps = self._read_stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            _load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._settings)
        except InvalidConfig as error:
            log.error("changed certificate is invalid, the one before is still used", error=str(error))
            return False
        return True

    def _read_stamps(self) -> list[tuple[int, int] | None]:
        paths = [path for path in (self._settings.certificate_file, self._settings.key_file) if path is not None]
        return [_stamp(path) for path in paths]


class _Renewal:
    """Loads certificate and key at a handshake when they have changed: that one still gets the old certificate, those
    after it the new one."""

    def __init__(self, settings: TlsSettings, context: ssl.SSLContext) -> None:
        self._settings = settings
        self._context = context
        self._watch = CertificateWatch(settings)

    def __call__(self, _connection: object, _name: str | None, _context: ssl.SSLContext) -> None:
        if self._watch.is_changed():
            _load_certificate(self._context, self._settings)
            log.info("certificate read again", path=str(self._settings.certificate_file))


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    certificate, key = settings.certificate_file, settings.key_file
    assert certificate is not None
    _readable("certificate_file", certificate)
    if key is not None:
        _readable("key_file", key)
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except ssl.SSLError as error:
        mismatch = error.reason == "KEY_VALUES_MISMATCH"
        reason = (
            "the private key does not belong to the certificate"
            if mismatch
            else "a certificate and its private key in PEM are needed"
        )
        raise _problem("certificate_file", certificate, reason) from error
    except _PassphraseNeeded as error:
        raise _problem("key_file", key or certificate, "the private key has a passphrase; remove it") from error


def peer_subject(ssl_object: ssl.SSLObject | ssl.SSLSocket | None) -> str | None:
    """The subject of the client's certificate as RFC 4514 writes it (`CN=worker-1,O=Acme`), or None without one.

    The handshake has checked the certificate. `openssl x509 -noout -subject -nameopt RFC2253` shows the same text.
    """
    certificate = ssl_object.getpeercert(binary_form=True) if ssl_object is not None else None
    return None if certificate is None else _subject(certificate)


@lru_cache(maxsize=1_024)
def subject_of_pem(certificate: bytes) -> str | None:
    """The same of a certificate in PEM, for a front whose library checks it by itself and says so with every call."""
    return _subject(ssl.PEM_cert_to_DER_cert(certificate.decode("ascii").strip()))


def _subject(certificate: bytes) -> str | None:
    from cryptography import x509  # noqa: PLC0415 - 9 MiB of memory, for servers that have such clients

    try:
        return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
    except ValueError as error:  # OpenSSL was content with it; what cannot be read names nobody
        log.warning("subject of a client certificate cannot be read", error=str(error))
        return None


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
