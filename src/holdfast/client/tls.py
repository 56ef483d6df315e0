"""TLS settings of a client: trusted certificates and its own."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec

from holdfast.errors import InvalidArgument


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Options for `https` addresses."""

    ca_file: Path | str | None = None
    """Certificates in PEM to trust instead of the system's."""
    certificate_file: Path | str | None = None
    """The client's own certificate in PEM, for servers that ask for one."""
    key_file: Path | str | None = None
    """Its key; None: it is in the certificate's file."""
    verify: bool = True
    """False disables verification of the server's certificate: for test systems only."""

    def context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:  # ssl.SSLError is one
            raise _unusable("ca_file", self.ca_file, error) from None
        if self.certificate_file is not None:
            try:
                context.load_cert_chain(self.certificate_file, self.key_file)
            except OSError as error:
                with_key = f" with {self.key_file}" if self.key_file is not None else ""
                raise _unusable("certificate_file", f"{self.certificate_file}{with_key}", error) from None
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def as_context(tls: Tls | ssl.SSLContext) -> ssl.SSLContext:
    return tls.context() if isinstance(tls, Tls) else tls


def _unusable(field: str, value: Path | str | None, error: OSError) -> InvalidArgument:
    return InvalidArgument(field=field, problem=f"{value} cannot be used: {error.strerror or error}")
