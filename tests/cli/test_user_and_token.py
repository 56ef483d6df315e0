"""`holdfast user` and `holdfast token`, as a person or a script meets them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.auth.gate import Gate
from holdfast.auth.principal import Action
from holdfast.broker.node import wall_clock
from holdfast.cli.main import main
from holdfast.config import AuthSettings, Config
from holdfast.errors import Unauthenticated
from holdfast.units import SECOND, format_instant
from tests.cli.test_cli import HOLDFAST
from tests.cli.test_cli import run as run_command
from tests.waiting import PATIENCE_SECONDS

FAST = {"HOLDFAST_AUTH_HASH_MEMORY": "8KiB", "HOLDFAST_AUTH_HASH_PASSES": "1"}


def run(*arguments: str | Path, stdin: str | None = None, **environ: str) -> Result:
    return run_command(*map(str, arguments), stdin=stdin, **FAST, **environ)


def good(*arguments: str | Path, stdin: str | None = None, **environ: str) -> str:
    done = run(*arguments, stdin=stdin, **environ)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secret" / "users.json"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key.json"
    good("token", "key", path)
    return path


# --- users ----------------------------------------------------------------------------------------------------------


async def test_a_user_that_was_added_gets_in(file: Path) -> None:
    said = good(
        "user", "add", "shop", "--scope", "produce:orders/#", "--scope", "consume:bills", "--namespace", "acme",
        "--file", file, stdin="correct horse\n",
    )  # fmt: skip
    assert said == "", "nothing but data on standard output"
    door = Gate(Config(auth=AuthSettings(users_file=file)), wall_clock)
    who = await door.password("shop", "correct horse", "10.0.0.1")
    assert who.namespace == "acme"
    assert who.may(Action.CONSUME, "bills")


def test_access_keys_are_added_printed_once_listed_and_removed(file: Path) -> None:
    said = good("user", "add", "shop", "--no-password", "--access-key", "--scope", "produce:#", "--file", file)
    first = dict(line.split("=", 1) for line in said.splitlines())
    assert first.keys() == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    said = good("user", "access-key", "shop", "--file", file)
    second = dict(line.split("=", 1) for line in said.splitlines())
    [entry] = json.loads(file.read_text())["users"]
    ids = [first["AWS_ACCESS_KEY_ID"], second["AWS_ACCESS_KEY_ID"]]
    assert [key["id"] for key in entry["access_keys"]] == ids
    assert entry["access_keys"][1]["secret"] == second["AWS_SECRET_ACCESS_KEY"]
    assert run("user", "access-key", "shop", "--file", file).exit_code == 2, "a user has two at most"
    [listed] = json.loads(good("user", "list", "--output", "json", "--file", file))
    assert listed["access_keys"] == ids
    assert first["AWS_SECRET_ACCESS_KEY"] not in good("user", "list", "--file", file)
    assert good("user", "access-key", "shop", "--remove", ids[0], "--file", file) == ""
    [entry] = json.loads(file.read_text())["users"]
    assert [key["id"] for key in entry["access_keys"]] == ids[1:]
    assert run("user", "access-key", "shop", "--remove", ids[0], "--file", file).exit_code != 0
    assert run("user", "access-key", "shop", "--remove", ids[1], "--file", file).exit_code != 0, "nothing else is left"


def test_the_file_is_private_and_holds_no_password(file: Path) -> None:
    good("user", "add", "shop", "--file", file, stdin="correct horse\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert "correct horse" not in file.read_text()
    assert '"$argon2id$v=19$m=8,t=1,p=1$' in file.read_text()


def test_users_are_listed_without_their_hashes(file: Path) -> None:
    good("user", "add", "b", "--scope", "admin:#", "--file", file, stdin="correct horse\n")
    good("user", "add", "a", "--no-password", "--subject", "CN=a,O=Acme", "--file", file)
    listed = json.loads(good("user", "list", "-o", "json", "--file", file))
    assert listed == [
        {"name": "a", "namespace": None, "scopes": [], "password": False, "subject": "CN=a,O=Acme", "access_keys": []},
        {"name": "b", "namespace": None, "scopes": ["admin:#"], "password": True, "subject": None, "access_keys": []},
    ]
    lines = good("user", "list", "-o", "jsonl", "--file", file).splitlines()
    assert [json.loads(line) for line in lines] == listed
    table = good("user", "list", "--file", file).splitlines()
    assert table[0].split() == ["name", "namespace", "scopes", "password", "subject", "access_keys"]
    assert table[2].split()[:5] == ["b", "-", "admin:#", "true", "-"]
    assert "argon2" not in "".join([*lines, *table])


async def test_passwords_scopes_and_users_change(file: Path) -> None:
    good("user", "add", "shop", "--scope", "produce:a", "--file", file, stdin="correct horse\n")
    good("user", "passwd", "shop", "--file", file, stdin="battery staple\n")
    good("user", "update", "shop", "--scope", "produce:b", "--file", file)
    door = Gate(Config(auth=AuthSettings(users_file=file)), wall_clock)
    who = await door.password("shop", "battery staple", "")
    assert [str(scope) for scope in who.scopes] == ["produce:b"]
    with pytest.raises(Unauthenticated):
        await door.password("shop", "correct horse", "")
    good("user", "remove", "shop", "--file", file)
    assert json.loads(good("user", "list", "-o", "json", "--file", file)) == []


async def test_a_password_can_be_made_up(file: Path) -> None:
    made = good("user", "add", "robot", "--generate", "--file", file).strip()
    assert len(made) == 32
    door = Gate(Config(auth=AuthSettings(users_file=file)), wall_clock)
    assert (await door.password("robot", made, "")).name == "robot"


def test_the_file_may_be_that_of_the_configuration(file: Path, tmp_path: Path) -> None:
    toml = tmp_path / "holdfast.toml"
    toml.write_text(f'[auth]\nusers_file = "{file}"\n')
    good("user", "add", "a", "--config", toml, stdin="correct horse\n")
    good("user", "add", "b", stdin="correct horse\n", HOLDFAST_AUTH_USERS_FILE=str(file))
    assert len(json.loads(good("user", "list", "-o", "json", "--config", toml))) == 2
    done = run("user", "list")
    assert done.exit_code == 2
    assert "auth.users_file" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "said"),
    [
        (["add", "shop"], "correct horse\n", 1, "exists already"),
        (["add", "new"], "short\n", 2, "at least 8 characters"),
        (["add", "new"], "x" * 2000 + "\n", 2, "at most 1024 bytes"),
        (["add", "new"], "", 2, "which was empty"),
        (["add", "new", "--scope", "write:x"], "correct horse\n", 2, "produce:, consume: or admin:"),
        (["add", "new", "--scope", "produce:$queue/x"], "correct horse\n", 2, "leave $queue/ out"),
        (["add", "new", "--namespace", "a/b"], "correct horse\n", 2, "namespace"),
        (["add", "a\nb"], "correct horse\n", 2, "printable"),
        (["add", "new", "--no-password"], "", 2, "--subject"),
        (["add", "new", "--no-password", "--subject", "CN=shop"], "", 2, "already belongs to shop"),
        (["passwd", "nobody"], "correct horse\n", 1, "does not exist"),
        (["update", "nobody", "--scope", "admin:#"], "", 1, "does not exist"),
        (["update", "shop"], "", 2, "Nothing to change"),
        (["remove", "nobody"], "", 1, "does not exist"),
        (["add", "new", "hunter22222"], "", 2, "unexpected extra argument"),
        (["add", "new", "--password", "hunter22222"], "", 2, "No such option"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    file: Path, arguments: list[str], stdin: str, code: int, said: str
) -> None:
    good("user", "add", "shop", "--subject", "CN=shop", "--file", file, stdin="correct horse\n")
    before = file.read_bytes()
    done = run("user", *arguments, "--file", file, stdin=stdin)
    assert done.exit_code == code
    assert said in done.stderr
    assert file.read_bytes() == before


def test_a_file_that_is_missing_or_broken_is_told(file: Path, tmp_path: Path) -> None:
    done = run("user", "remove", "x", "--file", tmp_path / "none.json")
    assert done.exit_code == 1
    assert "does not exist. `holdfast user add` creates it" in done.stderr
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    done = run("user", "add", "x", "--file", broken, stdin="correct horse\n")
    assert (done.exit_code, broken.read_text()) == (1, "{")


def test_many_concurrent_writers_lose_nothing(file: Path) -> None:
    file.parent.mkdir()
    started = [
        subprocess.Popen(
            [HOLDFAST, "user", "add", f"user{n}", "--generate", "--file", file],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **FAST},
        )
        for n in range(6)
    ]
    said = [process.communicate(timeout=PATIENCE_SECONDS)[1] for process in started]
    assert [process.returncode for process in started] == [0] * 6, said
    assert len(json.loads(file.read_text())["users"]) == 6


# --- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256", "RS256", "HS256"])
def test_a_token_that_was_made_is_taken(tmp_path: Path, algorithm: str) -> None:
    key, public = tmp_path / "key.json", tmp_path / "public.json"
    shared = algorithm == "HS256"
    also: list[str | Path] = [] if shared else ["--public", public]
    good("token", "key", key, "--algorithm", algorithm, *also)
    assert key.stat().st_mode & 0o777 == 0o600
    text = good("token", "create", "--subject", "shop", "--scope", "produce:orders/#", "--key", key).strip()
    document = json.loads(good("token", "inspect", "-o", "json", "--key", key if shared else public, stdin=text))
    assert document["header"]["alg"] == algorithm
    assert document["claims"]["sub"] == "shop"
    assert (document["valid"], document["problem"], document["scopes"]) == (True, None, ["produce:orders/#"])
    if not shared:
        assert public.stat().st_mode & 0o777 == 0o644
        assert not {"d", "p", "q", "k"} & set(json.loads(public.read_text())["keys"][0])


async def test_a_token_for_the_server_itself_is_asked_for_by_name(key: Path) -> None:
    door = Gate(Config(auth=AuthSettings(key_file=key)), wall_clock)
    text = good("token", "create", "--subject", "prometheus", "--node", "--key", key).strip()
    scraper = await door.token(text, "10.0.0.1")
    assert (scraper.may_node, scraper.may_filter(Action.ADMIN, "#")) == (True, False)
    both = good("token", "create", "--subject", "ops", "--node", "--scope", "admin:#", "--key", key).strip()
    assert [str(scope) for scope in (await door.token(both, "10.0.0.1")).scopes] == ["admin:#", "node"]


def test_a_token_carries_what_was_asked_for(key: Path) -> None:
    made = json.loads(
        good(
            "token", "create", "--subject", "shop", "--scope", "produce:a", "--scope", "consume:b",
            "--namespace", "acme", "--ttl", "2h", "--key", key, "-o", "json",
            HOLDFAST_AUTH_TOKEN_ISSUER="me", HOLDFAST_AUTH_TOKEN_AUDIENCE="holdfast",
        )
    )  # fmt: skip
    body = made["token"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert claims["exp"] - claims["iat"] == 7200
    assert {name: claims[name] for name in ("sub", "ns", "scope", "iss", "aud")} == {
        "sub": "shop",
        "ns": "acme",
        "scope": "produce:a consume:b",
        "iss": "me",
        "aud": "holdfast",
    }
    assert made["scopes"] == ["produce:a", "consume:b"]


def test_inspect_reports_what_is_wrong_and_exits_with_1(key: Path, tmp_path: Path) -> None:
    text = good("token", "create", "--subject", "x", "--scope", "admin:#", "--key", key).strip()
    other = tmp_path / "other.json"
    good("token", "key", other)
    done = run("token", "inspect", "--key", other, stdin=f"Bearer {text}\n")
    assert done.exit_code == 1
    assert "no key here fits" in done.stderr
    assert "claims sub" in done.stdout
    wrong = run("token", "inspect", "--key", key, "-o", "json", stdin=text, HOLDFAST_AUTH_TOKEN_ISSUER="somebody")
    assert json.loads(wrong.stdout)["problem"] == "the token is from another issuer (`iss`)"
    assert run("token", "inspect", "--key", key, stdin="garbage").exit_code == 1
    assert run("token", "inspect", "--key", key, stdin="x" * 100_000).exit_code == 1


def test_scopes_that_are_not_ours_are_shown_as_ignored(key: Path) -> None:
    from holdfast.auth import keys, tokens

    signing = keys.read(key.read_bytes(), 10).signing()
    assert signing is not None
    end = int(time.time()) + 36_000
    text = tokens.sign(tokens.Claims(sub="x", scope="openid admin:a", exp=end), signing)
    document = json.loads(good("token", "inspect", "--key", key, "-o", "json", stdin=text))
    assert (document["scopes"], document["ignored"]) == (["admin:a"], ["openid"])
    assert format_instant(end * SECOND) in good("token", "inspect", "--key", key, stdin=text)


def test_keys_are_changed_without_a_gap(key: Path, tmp_path: Path) -> None:
    old = good("token", "create", "--subject", "old", "--key", key).strip()
    public = tmp_path / "public.json"
    good("token", "key", key, "--append", "--public", public)
    new = good("token", "create", "--subject", "new", "--key", key).strip()
    assert old.split(".")[0] != new.split(".")[0], "the new key signs"
    for text in (old, new):
        good("token", "inspect", "--key", public, stdin=text)


def test_a_secret_from_the_environment_signs_too() -> None:
    environ = {"HOLDFAST_AUTH_TOKEN_SECRET": "0123456789abcdef0123456789abcdef"}
    text = good("token", "create", "--subject", "x", **environ).strip()
    assert '"x"' in good("token", "inspect", "-o", "json", stdin=text, **environ)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create"], 2, "--subject"),
        (["create", "--subject", "x", "--scope", "nonsense"], 2, "produce:, consume: or admin:"),
        (["create", "--subject", "x", "--ttl", "soon"], 2, "not a duration"),
        (["create", "--subject", "x", "--ttl", "0s"], 2, "from 1s to 3660d"),
        (["create", "--subject", "x", "--ttl", "none"], 2, "token_expiry_required"),
        (["create", "--subject", "x", "--namespace", "a/b"], 2, "1 to 255 bytes"),
        (["create", "--subject", "x" * 300], 2, "would accept this token"),
        (["create", "--subject", "x", *(f"--scope=produce:{'y' * 1000}{n}" for n in range(20))], 2, "longer than 8192"),
    ],
)
def test_a_token_that_nobody_would_take_is_not_made(key: Path, arguments: list[str], code: int, said: str) -> None:
    done = run("token", *arguments, "--key", key)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in done.stderr


def test_keys_are_not_overwritten_and_public_ones_do_not_sign(key: Path, tmp_path: Path) -> None:
    before = key.read_bytes()
    done = run("token", "key", key)
    assert (done.exit_code, key.read_bytes()) == (1, before)
    assert "--append" in done.stderr
    public = tmp_path / "public.json"
    good("token", "key", key, "--append", "--public", public)
    assert "public keys only" in run("token", "create", "--subject", "x", "--key", public).stderr
    assert "public keys only" in run("token", "key", public, "--append").stderr
    assert run("token", "key", tmp_path / "x", "--algorithm", "HS256", "--public", public).exit_code == 2
    assert run("token", "create", "--subject", "x").exit_code == 2
    assert "cannot be read" in run("token", "create", "--subject", "x", "--key", tmp_path / "none").stderr


# --- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["table", "json"])
def test_config_show_hides_secrets(output: str) -> None:
    secret = "a-very-secret-text-of-forty-characters!!"
    document = good("config", "show", "--origin", "-o", output, HOLDFAST_AUTH_TOKEN_SECRET=secret)
    assert secret not in document
    assert "********" in document
    assert "********" not in good("config", "show", "-o", output)


def test_a_secret_that_is_too_short_is_refused_without_being_shown() -> None:
    done = run("config", "check", HOLDFAST_AUTH_TOKEN_SECRET="hunter2")
    assert done.exit_code == 2
    assert "hunter2" not in done.output
    assert "32 to 4096 bytes" in done.stderr


def test_insecure_is_a_flag_without_a_value() -> None:
    assert json.loads(good("config", "show", "-o", "json", "--insecure"))["auth"]["insecure"] is True
    document = json.loads(good("config", "show", "-o", "json", "--no-insecure", HOLDFAST_AUTH_INSECURE="true"))
    assert document["auth"]["insecure"] is False
    assert json.loads(good("config", "show", "-o", "json", HOLDFAST_AUTH_INSECURE="true"))["auth"]["insecure"] is True


# --- taking tokens back ---------------------------------------------------------------------------------------------


async def test_a_token_that_was_revoked_is_taken_no_more(key: Path, tmp_path: Path) -> None:
    revoked = tmp_path / "revoked.jsonl"
    revoked.touch(mode=0o600)
    door = Gate(Config(auth=AuthSettings(key_file=key, revoked_file=revoked, reload_interval=0)), wall_clock)
    made, other = (
        good("token", "create", "--key", key, "--subject", "shop", "--scope", "admin:#").strip() for _ in "ab"
    )
    assert (await door.token(made, "10.0.0.1")).name == "shop"
    assert run("token", "revoke", "--file", revoked, stdin=made).exit_code == 2, "nobody said yes"
    assert good("token", "revoke", "--file", revoked, "--yes", stdin=made) == ""
    with pytest.raises(Unauthenticated, match="taken back"):
        await door.token(made, "10.0.0.1")
    await door.token(other, "10.0.0.1")
    inspected = run("token", "inspect", "--key", key, stdin=made, HOLDFAST_AUTH_REVOKED_FILE=str(revoked))
    assert inspected.exit_code == 1
    good("token", "revoke", "--file", revoked, "--yes", "--id", "somebody's")
    assert len(revoked.read_text().splitlines()) == 2
    assert revoked.stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_revoked_is_told(key: Path, tmp_path: Path) -> None:
    none = run("token", "revoke", "--yes", "--id", "x")
    assert (none.exit_code, "auth.revoked_file" in none.output) == (2, True)
    file = tmp_path / "revoked.jsonl"
    assert "has no id" in run("token", "revoke", "--file", file, "--yes", stdin="a.e30.c").output
    file.write_text("nonsense")
    assert "line 1" in run("token", "revoke", "--file", file, "--yes", "--id", "x").output
    assert file.read_text() == "nonsense"


def test_revoking_a_token_twice_counts_it_once(tmp_path: Path) -> None:
    file = tmp_path / "revoked.json"
    for token_id, count in (("a", 1), ("b", 2), ("a", 2)):
        done = CliRunner().invoke(main, ["token", "revoke", "--id", token_id, "--file", str(file), "--yes"])
        assert f"Revoked: {count}." in done.stderr, done.output
