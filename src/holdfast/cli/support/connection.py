"""The server and credentials of a command: the options of `holdfast` itself, and the client made from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click
import msgspec

from holdfast.cli.support import contexts
from holdfast.cli.support.secrets import ask_secret
from holdfast.cli.support.times import DURATION
from holdfast.errors import HoldfastError, InvalidArgument

if TYPE_CHECKING:
    from holdfast.client import Client, SyncClient, Tls

# The client is imported by the commands that use it: the others should start quickly.

Command = TypeVar("Command", bound=Callable[..., object])


class Decorator(Protocol):
    """The decorator that click makes of an option."""

    def __call__(self, command: Command, /) -> Command: ...


URL = "http://127.0.0.1:8080"
WITHOUT_SERVER = ("serve", "config", "context", "user", "token", "store", "audit", "completion")
"""Commands that talk to no server, and start whatever is saved."""
CREDENTIALS = ("token_file", "user", "password_file")
BUDGET_SECONDS = 3.0
"""How long a command retries: a person waits for it, and a script can repeat it. (Workers never give up.)"""


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the options."""

    url: str
    token: str | None
    token_file: Path | None
    user: str | None
    password_file: Path | None
    namespace: str | None
    ca_file: Path | None
    certificate_file: Path | None
    key_file: Path | None
    verify: bool
    timeout: str

    def open(self, *, quick: bool = False, full_seconds: float = 0.0) -> SyncClient:
        """A client. Commands use `connected`, which also checks the namespace. A `quick` one does not retry, for
        completions. `full_seconds` is how long it waits for room in a full queue."""
        from holdfast.client import Retries, SyncClient  # noqa: PLC0415

        options = self._options()
        if quick:
            return SyncClient(self.url, **{**options, "timeout": "1s"}, retries=Retries(attempts=1))
        return SyncClient(
            self.url, **options, retries=Retries(budget_seconds=BUDGET_SECONDS, full_seconds=full_seconds)
        )

    def open_async(self) -> Client:
        """The asynchronous client."""
        from holdfast.client import Client  # noqa: PLC0415

        return Client(self.url, **self._options())

    def check_namespace(self, client: SyncClient) -> None:
        """Raises InvalidArgument if the credentials are not for the namespace of --namespace."""
        if self.namespace is None:
            return
        actual = client.overview().namespace
        if actual != self.namespace:
            raise InvalidArgument(
                field="--namespace",
                problem=f"is {self.namespace!r}, but the credentials are for {actual!r}; nothing was done",
            )

    def _options(self) -> dict[str, Any]:
        return {
            "token": self._token(),
            "user": self.user,
            "password": self._password(),
            "timeout": self.timeout,
            "tls": self.tls(),
        }

    def tls(self) -> Tls:
        """Trusted certificates and the client's own."""
        from holdfast.client import Tls  # noqa: PLC0415

        return Tls(
            ca_file=self.ca_file,
            certificate_file=self.certificate_file,
            key_file=self.key_file,
            verify=self.verify,
        )

    def secret(self) -> str | None:
        """The token, for callers that do not use the client: a Spark job's tasks."""
        return self._token()

    def login(self) -> tuple[str, str] | None:
        """User and password, for callers that do not use the client."""
        return (self.user, self._password() or "") if self.user is not None else None

    def _token(self) -> str | None:
        if self.token is not None or self.token_file is None:
            return self.token
        return _secret(self.token_file, "token")

    def _password(self) -> str | None:
        if self.user is None:
            return None
        if self.password_file is not None:
            return _secret(self.password_file, "password")
        return ask_secret(f"Password of {self.user}")


def _secret(file: Path, what: str) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(field=f"The {what} file {file}", problem=f"cannot be read: {error}") from None


def _option(
    flag: str, *, default: object = None, kind: click.ParamType[Any] | None = None, help_text: str
) -> Decorator:
    """An option of `holdfast` itself, with its environment variable: --ca-file is HOLDFAST_CA_FILE."""
    env_var = "HOLDFAST_" + flag.partition("/")[0].removeprefix("--").upper().replace("-", "_")
    show_default = isinstance(default, str)
    return click.option(flag, envvar=env_var, default=default, type=kind, show_default=show_default, help=help_text)


_FILE = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    _option(
        "--context",
        help_text="The saved server to talk to (holdfast context). Options other than --url override what it says.",
    ),
    _option("--url", default=URL, help_text="The server's HTTP address."),
    _option(
        "--token",
        help_text="The token. Others can see it on a command line: set HOLDFAST_TOKEN instead, or use --token-file.",
    ),
    _option("--token-file", kind=_FILE, help_text="A file with the token."),
    _option("--user", help_text="The user; its password is prompted for."),
    _option("--password-file", kind=_FILE, help_text="A file with the user's password."),
    _option(
        "--namespace",
        help_text="Do nothing unless the credentials are for this namespace. (They decide it; a client cannot choose.)",
    ),
    _option("--ca-file", kind=_FILE, help_text="Certificates in PEM to trust, instead of the system's."),
    _option("--certificate-file", kind=_FILE, help_text="Your own certificate in PEM, for servers that ask for one."),
    _option("--key-file", kind=_FILE, help_text="The certificate's key. [default: it is in the certificate's file]"),
    _option(
        "--verify/--no-verify",
        default=True,
        help_text="Whether to verify the server's certificate. [default: verify]",
    ),
    _option("--timeout", kind=DURATION, default="30s", help_text="How long to wait for a response."),
)


def connection_options(command: Command) -> Command:
    """The options of `holdfast` itself."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def connection_from(context: click.Context, given: dict[str, Any]) -> Connection:
    """The options, those that are not given from the saved server."""
    name = given.pop("context")
    if context.invoked_subcommand in WITHOUT_SERVER and name is None:
        return Connection(**given)
    saved = contexts.options(name)
    if _given(context, "url") and name is not None and given["url"].rstrip("/") != saved.get("url", URL).rstrip("/"):
        problem = f"is {given['url']}, and the saved server {name} is {saved.get('url', URL)}; give one of them"
        raise InvalidArgument(field="--url", problem=problem)
    if _given(context, "url") and name is None:
        saved = {}  # its credentials are for another server
    if any(_given(context, option) for option in ("token", "token_file", "user")):
        saved = {field: value for field, value in saved.items() if field not in CREDENTIALS}
    return Connection(**given | {field: value for field, value in saved.items() if not _given(context, field)})


def _given(context: click.Context, option: str) -> bool:
    return context.get_parameter_source(option) not in (None, click.core.ParameterSource.DEFAULT)


def connection_of(context: click.Context) -> Connection | None:
    """The values of the options, also while a shell completes and no command runs."""
    root = context.find_root()
    if isinstance(root.obj, Connection):
        return root.obj
    try:
        return connection_from(root, {name: root.params[name] for name in ("context", *Connection.__struct_fields__)})
    except (KeyError, HoldfastError):
        return None


def settings() -> Connection:
    """The values of the running command's options."""
    found = click.get_current_context().find_object(Connection)
    assert found is not None
    return found


@contextmanager
def connected(*, full_seconds: float = 0.0) -> Iterator[SyncClient]:
    """A client for the running command. `full_seconds` is how long it waits for room in a full queue."""
    wanted = settings()
    with wanted.open(full_seconds=full_seconds) as client:
        wanted.check_namespace(client)
        yield client
