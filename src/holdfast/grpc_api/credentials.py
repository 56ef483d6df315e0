"""TLS of the gRPC server. Its library brings its own TLS, so the settings are applied by other means than on the other
fronts: what they have checked (`holdfast.auth.tls`) is given to it."""

from __future__ import annotations

from typing import Any

import grpc
import structlog

from holdfast.auth import tls
from holdfast.config import TlsSettings
from holdfast.errors import InvalidConfig

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


def server_credentials(settings: TlsSettings) -> grpc.ServerCredentials:
    """Raises InvalidConfig for what the library cannot do."""
    if settings.minimum_version != "1.2":
        raise InvalidConfig(
            field="tls.minimum_version",
            value=settings.minimum_version,
            problem="gRPC's library takes 1.2 too and cannot be told otherwise; use 1.2, or leave grpc.listen empty",
        )
    if settings.client_certificates == "optional":
        log.warning("gRPC clients are not asked for a certificate: its library knows none and required only")
    required = settings.client_certificates == "required"
    source = _Certificates(settings, authorities=required)
    changed: Any = source.changed  # may give None, whatever the library's types say
    return grpc.dynamic_ssl_server_credentials(source.current, changed, required)


class _Certificates:
    """The certificate and its key, read again when they change."""

    def __init__(self, settings: TlsSettings, *, authorities: bool) -> None:
        self._settings = settings
        self._watch = tls.CertificateWatch(settings)
        path = settings.client_ca_file
        self._authorities = path.read_bytes() if authorities and path is not None else None
        self.current = self._read()

    def _read(self) -> grpc.ServerCertificateConfiguration:
        certificate_file = self._settings.certificate_file
        assert certificate_file is not None
        key_file = self._settings.key_file or certificate_file
        pair = (key_file.read_bytes(), certificate_file.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], self._authorities)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """At a handshake, on a thread of the library: the new pair, None if it is the one before."""
        if not self._watch.is_changed():
            return None
        try:
            self.current = self._read()
        except OSError as error:
            log.error("changed certificate cannot be read, the one before is still used", error=str(error))
            return None
        return self.current
