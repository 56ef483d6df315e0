"""Tokens: those that are good, and every way we know to pass one off that is not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from pathlib import Path

import pytest
import structlog
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

from holdfast.auth import keys, tokens
from holdfast.auth.gate import Gate
from holdfast.auth.keyring import Key, Keyring
from holdfast.auth.keys import ALGORITHMS
from holdfast.auth.principal import Action
from holdfast.config.secret import SecretText
from holdfast.errors import InvalidConfig, Unauthenticated
from holdfast.units import MINUTE, SECOND
from tests.auth.conftest import Clock
from tests.auth.rig import claims, gate, part, token, write, write_keys

KEYS = {algorithm: keys.generate(algorithm) for algorithm in ALGORITHMS}
HS, RS, ES, ED = KEYS["HS256"], KEYS["RS256"], KEYS["ES256"], KEYS["EdDSA"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def door(file: Path, clock: Clock) -> Gate:
    """Knows all four keys, the asymmetric ones by their public part."""
    write_keys(file, HS.private(), RS.public(), ES.public(), ED.public())
    return gate(clock, key_file=file)


async def refusal(door: Gate, text: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await door.token(text, "10.0.0.1")
    return str(caught.value.details["problem"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_good_token_says_who_where_and_what(door: Gate, clock: Clock, algorithm: str) -> None:
    who = await door.token(token(clock, KEYS[algorithm]), "10.0.0.1")
    assert (who.name, who.namespace, who.method) == ("shop", "acme", "token")
    assert who.may(Action.PRODUCE, "orders/new")
    assert who.may(Action.CONSUME, "bills")
    assert not who.may(Action.CONSUME, "orders/new")
    assert not who.may(Action.ADMIN, "orders/new")
    assert door.valid(who)


async def test_tokens_of_another_library_are_understood(door: Gate, clock: Clock) -> None:
    """What an identity provider would send: foreign scopes, claims and header fields, scopes as a list."""
    now = clock() // SECOND
    body = {"sub": "x", "exp": now + 9.5, "iat": now, "azp": "app", "roles": ["a"], "scope": ["openid", "admin:a/#"]}
    assert isinstance(RS.jose, RSAKey)
    text = jwt.encode({"alg": "RS256", "kid": RS.kid, "x5t": "abc"}, body, RS.jose)
    who = await door.token(text, "")
    assert [str(scope) for scope in who.scopes] == ["admin:a/#"]
    assert who.namespace == "default"


async def test_the_second_name_of_eddsa_is_understood(door: Gate, clock: Clock) -> None:
    head = part({"alg": "Ed25519", "kid": ED.kid})
    body = part({"sub": "x", "exp": clock() // SECOND + 5})
    raw = ED.jose.raw_value
    assert isinstance(raw, ed25519.Ed25519PrivateKey)
    signature = base64.urlsafe_b64encode(raw.sign(f"{head}.{body}".encode())).rstrip(b"=").decode()
    assert (await door.token(f"{head}.{body}.{signature}", "")).name == "x"


# --- attacks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", ""])
@pytest.mark.parametrize("signature", ["", "AAAA"])
async def test_an_unsigned_token_is_refused(door: Gate, clock: Clock, name: str, signature: str) -> None:
    body = part({"sub": "shop", "scope": "admin:#", "exp": clock() // SECOND + 60})
    problem = await refusal(door, f"{part({'alg': name})}.{body}.{signature}")
    assert "form of a JWT" in problem or "no key here fits" in problem


@pytest.mark.parametrize("kid", [None, "RS"])
@pytest.mark.parametrize("encoding", ["pem", "der", "jwk", "n"])
async def test_a_public_key_is_never_a_secret(file: Path, clock: Clock, encoding: str, kid: str | None) -> None:
    """The classic: sign with HS256, with the bytes of the public key that everybody may know as the secret."""
    write_keys(file, RS.public())
    door = gate(clock, key_file=file)
    public = RS.jose.public_key
    assert isinstance(public, rsa.RSAPublicKey)
    style = serialization.PublicFormat.SubjectPublicKeyInfo
    secret = {
        "pem": public.public_bytes(serialization.Encoding.PEM, style),
        "der": public.public_bytes(serialization.Encoding.DER, style),
        "jwk": keys.as_document([RS.public()]),
        "n": str(RS.public()["n"]).encode(),
    }[encoding]
    head = part({"alg": "HS256", **({"kid": RS.kid} if kid else {})})
    body = part({"sub": "shop", "scope": "admin:#", "exp": clock() // SECOND + 60})
    mac = hmac.new(secret, f"{head}.{body}".encode(), hashlib.sha256).digest()
    text = f"{head}.{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    assert "no key here fits" in await refusal(door, text)


@pytest.mark.parametrize("signer", ALGORITHMS)
@pytest.mark.parametrize("claimed", [*ALGORITHMS, "RS512", "PS256", "HS512", "ES384"])
async def test_a_token_that_claims_another_algorithm_than_its_key_has_is_refused(
    door: Gate, clock: Clock, signer: str, claimed: str
) -> None:
    if signer == claimed:
        return
    _, body, signature = token(clock, KEYS[signer]).split(".")
    problem = await refusal(door, f"{part({'alg': claimed, 'kid': KEYS[signer].kid})}.{body}.{signature}")
    assert "no key here fits" in problem or "signature" in problem


class Careless(Keyring, frozen=True):
    """Offers every key for every token."""

    def fitting(self, algorithm: str, kid: str | None) -> list[Key]:
        return list(self.keys)


@pytest.mark.parametrize("claimed", ["none", "HS256", "HS512", "RS512", "PS256"])
def test_a_key_is_used_with_its_own_algorithm_whoever_offers_it(clock: Clock, claimed: str) -> None:
    _, body, signature = token(clock, RS).split(".")
    with pytest.raises(Unauthenticated, match="signature is not good"):
        tokens.check_signature(f"{part({'alg': claimed})}.{body}.{signature}", Careless((RS,)), 8192)
    good = tokens.check_signature(token(clock, RS), Careless((ED, HS, ES, RS)), 8192)
    assert good.key is RS


async def test_refusals_are_counted(door: Gate) -> None:
    for _ in range(3):
        await refusal(door, "a.b.c")
    assert door.counts.tokens_refused == 3


async def test_changed_claims_break_the_signature(door: Gate, clock: Clock) -> None:
    head, _, signature = token(clock, HS).split(".")
    body = part({"sub": "shop", "scope": "admin:#", "exp": clock() // SECOND + 60})
    assert "signature is not good" in await refusal(door, f"{head}.{body}.{signature}")


async def test_a_key_of_the_same_kind_that_is_not_ours_is_refused(door: Gate, clock: Clock) -> None:
    for algorithm in ALGORITHMS:
        stranger = keys.generate(algorithm)
        assert "no key here fits" in await refusal(door, token(clock, stranger))
        nameless = Key(stranger.jose, stranger.algorithm, stranger.thumbprint, KEYS[algorithm].kid)
        assert "signature is not good" in await refusal(door, token(clock, nameless))


async def test_a_key_that_the_token_brings_along_is_not_used(door: Gate, clock: Clock) -> None:
    stranger = keys.generate("RS256")
    header = {"alg": "RS256", "jwk": stranger.public(), "jku": "http://attacker.example/keys", "kid": RS.kid}
    body = part({"sub": "shop", "exp": clock() // SECOND + 60})
    assert isinstance(stranger.jose.raw_value, rsa.RSAPrivateKey)
    text = jwt.encode({"alg": "RS256"}, {"sub": "x"}, stranger.jose)
    assert "signature is not good" in await refusal(door, f"{part(header)}.{body}.{text.rpartition('.')[2]}")


@pytest.mark.parametrize("kid", ["../../etc/passwd", "' OR 1=1 --", "\0", "x" * 1000, "", None, "unknown"])
async def test_kid_is_only_ever_a_name(door: Gate, clock: Clock, kid: str | None) -> None:
    _, body, signature = token(clock, HS).split(".")
    assert await refusal(door, f"{part({'alg': 'HS256', 'kid': kid})}.{body}.{signature}")


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "HS256", "crit": ["exp"]},
        {"alg": "HS256", "crit": []},
        {"alg": "HS256", "b64": False, "crit": ["b64"]},
        {"alg": "HS256", "b64": True},
        {"alg": "HS256", "typ": "logout+jwt"},
    ],
)
async def test_a_header_that_asks_for_more_than_we_do_is_refused(door: Gate, clock: Clock, header: object) -> None:
    _, body, signature = token(clock, HS).split(".")
    assert "not understood" in await refusal(door, f"{part(header)}.{body}.{signature}")


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "...", "a.b", "a.b.c.d", "a.b.c", "eyJ.eyJ.eyJ", " eyJhbGciOiJIUzI1NiJ9.e30.AAAA", "Bearer x",
        "eyJhbGciOiJIUzI1NiJ9.e30.AAAA\n", "eyJhbGciOiJIUzI1NiJ9.e30=.AAAA", "\ud800.\ud800.\ud800", "é.é.é",
        f"{part([])}.e30.AAAA", f"{part('x')}.e30.AAAA", f"{part({'alg': 7})}.e30.AAAA", f"{part({})}.e30.AAAA",
        f"{base64.urlsafe_b64encode(b'{' + b'[' * 3000).decode().rstrip('=')}.e30.AAAA",
    ],
)  # fmt: skip
async def test_garbage_is_refused_quietly(door: Gate, text: str) -> None:
    assert await refusal(door, text)


@given(st.text(max_size=300) | st.binary(max_size=200).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_text_is_refused(door: Gate, text: str) -> None:
    assert await refusal(door, text)
    assert await refusal(door, f"{part({'alg': 'HS256'})}.{text}.{text}")


async def test_a_token_too_long_is_refused_unread(file: Path, clock: Clock) -> None:
    write_keys(file, HS.private())
    door = gate(clock, key_file=file, token_bytes_max=1000)
    long = token(clock, HS, sub="x" * 1000)
    assert await refusal(door, long) == "the token is longer than 1000 bytes"
    assert await refusal(door, "x" * 10_000_000) == "the token is longer than 1000 bytes"


# --- claims ---------------------------------------------------------------------------------------------------------


async def test_a_token_ends_when_it_says_with_a_little_leeway(door: Gate, clock: Clock) -> None:
    text = token(clock, HS)
    who = await door.token(text, "")
    clock.advance(69 * SECOND)  # 60 to the end, 10 of leeway
    assert await door.token(text, "") is who
    assert door.valid(who)
    clock.advance(SECOND)
    assert not door.valid(who), "a connection that is still open must be ended"
    assert "expired" in await refusal(door, text)


async def test_a_token_is_not_valid_before_it_says(door: Gate, clock: Clock) -> None:
    text = token(clock, HS, nbf=clock() // SECOND + 20, exp=clock() // SECOND + 90)
    assert "not valid yet" in await refusal(door, text)
    clock.advance(10 * SECOND)
    assert (await door.token(text, "")).name == "shop"


async def test_a_token_without_an_end_is_refused_unless_allowed(door: Gate, file: Path, clock: Clock) -> None:
    text = token(clock, HS, exp=None)
    assert "no end" in await refusal(door, text)
    lax = gate(clock, key_file=file, token_expiry_required=False)
    who = await lax.token(text, "")
    clock.advance(1_000_000 * SECOND)
    assert await lax.token(text, "") is who
    assert lax.valid(who)


async def test_a_token_that_is_valid_for_too_long_is_refused(file: Path, clock: Clock) -> None:
    write_keys(file, HS.private())
    door = gate(clock, key_file=file, token_lifetime_max=3_600 * SECOND)
    now = clock() // SECOND
    for good in ({"iat": now, "exp": now + 3_600}, {"exp": now + 3_600}, {"iat": now - 3_000, "exp": now + 600}):
        assert (await door.token(token(clock, HS, **{"iat": None, **good}), "")).name == "shop"
    for bad in ({"iat": now, "exp": now + 3_700}, {"exp": now + 3_700}, {"iat": now + 90, "exp": now + 3_690}):
        assert "auth.token_lifetime_max" in await refusal(door, token(clock, HS, **{"iat": None, **bad}))


async def test_issuer_and_audience_are_checked(file: Path, clock: Clock) -> None:
    write_keys(file, HS.private())
    door = gate(clock, key_file=file, token_issuer="https://id.example", token_audience="holdfast")
    good = {"iss": "https://id.example", "aud": "holdfast"}
    assert (await door.token(token(clock, HS, **good), "")).name == "shop"
    assert (await door.token(token(clock, HS, **{**good, "aud": ["other", "holdfast"]}), "")).name == "shop"
    for wrong in ("https://id.example/", "", None):
        assert "issuer" in await refusal(door, token(clock, HS, **{**good, "iss": wrong}))
    for aud in ("other", ["other"], [], "", None, "holdfast2"):
        assert "somebody else" in await refusal(door, token(clock, HS, **{**good, "aud": aud}))


async def test_a_token_for_an_audience_is_refused_where_none_is_configured(door: Gate, clock: Clock) -> None:
    assert "no name for one" in await refusal(door, token(clock, HS, aud="wiki"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sub": None}, "`sub`"),
        ({"sub": ""}, "`sub`"),
        ({"sub": "a\0b"}, "`sub`"),
        ({"sub": "\x1b[2J"}, "`sub`"),
        ({"sub": "x" * 256}, "`sub`"),
        ({"sub": 7}, "claims are not good"),
        ({"ns": "a/b"}, "`ns`"),
        ({"ns": ""}, "`ns`"),
        ({"ns": "+"}, "`ns`"),
        ({"ns": "$sys"}, "`ns`"),
        ({"ns": ["acme"]}, "claims are not good"),
        ({"exp": "tomorrow"}, "claims are not good"),
        ({"exp": True}, "claims are not good"),
        ({"exp": -1}, "expired"),
        ({"exp": 0}, "expired"),
        ({"nbf": 1e300}, "not valid yet"),
        ({"scope": {"admin": "#"}}, "claims are not good"),
        ({"scope": " ".join(f"produce:q{n}" for n in range(101))}, "more than 100 scopes"),
    ],
)
async def test_claims_that_make_no_sense_are_refused(
    door: Gate, clock: Clock, change: dict[str, object], problem: str
) -> None:
    body = json.loads(json.dumps({"sub": "x", "exp": clock() // SECOND + 60, **change}))
    assert isinstance(HS.jose, OctKey)
    text = jwt.encode({"alg": "HS256", "kid": HS.kid}, body, HS.jose)
    assert problem in await refusal(door, text)


@pytest.mark.parametrize(
    "scope", ["", "openid profile", "admin", "admin:", "Admin:#", "*", "admin:$queue/#", "admin:#/x"]
)
async def test_what_is_not_a_scope_of_ours_grants_nothing(door: Gate, clock: Clock, scope: str) -> None:
    who = await door.token(token(clock, HS, scope=scope), "")
    assert who.scopes == ()
    assert not any(who.may_filter(action, "x") or who.may(action, "x") for action in Action)


async def test_an_end_far_away_is_no_problem(file: Path, clock: Clock) -> None:
    write_keys(file, HS.private())
    door = gate(clock, key_file=file, token_lifetime_max=10**30)
    for number, far in enumerate((10**18, 253_402_300_800)):
        who = await door.token(token(clock, HS, exp=far, sub=f"far{number}"), "")
        assert door.valid(who)
    assert "auth.token_lifetime_max" in await refusal(door, token(clock, HS, exp=1e308))


# --- keys -----------------------------------------------------------------------------------------------------------


async def test_a_checked_token_is_remembered_within_limits(
    file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_keys(file, HS.private())
    door = gate(clock, key_file=file, token_cache=3)
    texts = [token(clock, HS, sub=f"user{n}") for n in range(5)]
    for text in texts:
        await door.token(text, "")
    assert len(door._tokens) == 3
    monkeypatch.setattr("holdfast.auth.tokens.check_signature", None)  # nobody may be asked any more
    for text in texts[2:]:
        assert (await door.token(text, "")).name.startswith("user")
    assert not any(text.encode() in key for text in texts for key in door._tokens), "no token stays in memory"


async def test_changed_keys_are_used_immediately_and_tokens_of_a_gone_key_are_refused(file: Path, clock: Clock) -> None:
    write_keys(file, HS.private())
    door = gate(clock, key_file=file)
    old, new = token(clock, HS), token(clock, ED)
    before = await door.token(old, "")
    assert "no key" in await refusal(door, new)

    write_keys(file, HS.private(), ED.public())
    assert (await door.token(new, "")).name == "shop"
    assert door.valid(before)
    assert (await door.token(old, "")).name == "shop"

    write_keys(file, ED.public())
    assert not door.valid(before), "also for a connection that is open"
    assert "no key" in await refusal(door, old)
    assert (await door.token(new, "")).name == "shop"


async def test_a_key_file_gone_bad_changes_nothing(file: Path, clock: Clock) -> None:
    write_keys(file, HS.private())
    door = gate(clock, key_file=file)
    text = token(clock, HS)
    for content in ("{", "-----BEGIN", '{"kty": "oct"}', '{"keys": {}}'):
        write(file, content)
        assert (await door.token(text, "")).name == "shop"
    write_keys(file, ED.public())
    assert "no key" in await refusal(door, text)


UNUSABLE = {**ED.public(), "use": "enc"}


@pytest.mark.parametrize(
    "content", ["", " \n", '{"keys": []}', json.dumps({"keys": [UNUSABLE]}), None], ids=lambda value: str(value)[:16]
)
async def test_a_key_file_without_keys_any_more_closes_the_door(file: Path, clock: Clock, content: str | None) -> None:
    write_keys(file, HS.private())
    door = gate(clock, key_file=file)
    text = token(clock, HS)
    connected = await door.token(text, "")
    with structlog.testing.capture_logs() as logs:
        if content is None:
            os.unlink(file)  # noqa: PTH108 - a path's own method is called blocking, this one is not
        else:
            write(file, content)
        assert not door.valid(connected)
        for _ in range(3):
            assert door.recall(text) is None
            assert "no tokens" in await refusal(door, text)
    assert len([line for line in logs if line["log_level"] == "warning" and "nobody" in line["event"]]) == 1
    assert door.required
    write_keys(file, HS.private())
    assert (await door.token(text, "")).name == "shop"


async def test_a_key_that_is_taken_out_of_the_file_ends_its_tokens_only(file: Path, clock: Clock) -> None:
    write_keys(file, HS.private(), ED.private())
    door = gate(clock, key_file=file)
    gone, kept = await door.token(token(clock, HS), ""), await door.token(token(clock, ED), "")
    write_keys(file, ED.private())
    assert "no key" in await refusal(door, token(clock, HS))
    assert (door.valid(gone), door.valid(kept)) == (False, True)


async def test_files_are_looked_at_no_more_often_than_configured(file: Path, clock: Clock) -> None:
    write_keys(file, HS.private())
    door = gate(clock, key_file=file, reload_interval=MINUTE)
    text = token(clock, HS, exp=clock() // SECOND + 1000)
    await door.token(text, "")
    write_keys(file, ED.public())
    clock.advance(59 * SECOND)
    assert (await door.token(text, "")).name == "shop"
    clock.advance(SECOND)
    assert await refusal(door, text)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
@pytest.mark.parametrize("private", [True, False])
async def test_pem_keys_are_read(file: Path, clock: Clock, algorithm: str, private: bool) -> None:
    key = KEYS[algorithm]
    assert not isinstance(key.jose, OctKey)
    write(file, key.jose.as_pem(private=private))
    door = gate(clock, key_file=file)
    assert (await door.token(token(clock, key), "")).name == "shop"
    nameless = Key(key.jose, key.algorithm, key.thumbprint)
    assert (await door.token(token(clock, nameless), "")).name == "shop"


async def test_the_secret_setting_is_a_key(clock: Clock) -> None:
    door = gate(clock, token_secret=SecretText("a secret of thirty-two bytes or more"))
    key = keys.from_secret(SecretText("a secret of thirty-two bytes or more"))
    assert door.required
    assert (await door.token(token(clock, key), "")).name == "shop"
    assert await refusal(door, token(clock, HS))
    head = json.loads(base64.urlsafe_b64decode(token(clock, key).partition(".")[0] + "=="))
    assert "kid" not in head, "the thumbprint of a secret is not for others"


def weak(**change: object) -> dict[str, object]:
    return {"keys": [{**RS.public(), **change}]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"just-a-secret-text-that-is-long-enough-for-hs256", "holds no key"),
        (b"", "holds no key"),
        (b"\x30\x82\x01\x22" + b"\0" * 100, "holds no key"),
        (json.dumps({"keys": []}).encode(), "it is empty"),
        (json.dumps({"keys": {}}).encode(), "must be a list"),
        (json.dumps({"kty": "oct", "k": "c2hvcnQ"}).encode(), "less than 32 bytes|too weak"),
        (json.dumps({"kty": "oct", "k": "A" * 40}).encode(), "less than 32 bytes"),
        (json.dumps(weak(n=part("x" * 2000))).encode(), "bits; 2048 to 8192 are needed"),
        (json.dumps({"kty": "oct", "k": 7}).encode(), "not text"),
        (json.dumps({"kty": "dsa"}).encode(), "`kty`"),
        (json.dumps(weak(use="enc")).encode(), "not for signatures"),
        (json.dumps(weak(key_ops=["encrypt"])).encode(), "not for signatures"),
        (json.dumps(weak(alg="RS512")).encode(), "another algorithm"),
        (json.dumps(weak(alg="HS256")).encode(), "another algorithm"),
        (json.dumps(weak(kid=7)).encode(), "`kid`"),
        (json.dumps(weak(n="AQAB")).encode(), "cannot be read, or is too weak"),
        (json.dumps({"keys": [RS.public()] * 33}).encode(), "more than 32 keys"),
        (b"{" + b'"a":[' * 100_000, "is not JSON"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "cannot be read"),
        (b"-----BEGIN DH PARAMETERS-----\nAAAA\n-----END DH PARAMETERS-----", "no key: DH PARAMETERS"),
    ],
)  # fmt: skip
def test_a_key_file_that_is_not_good_keeps_the_server_from_starting(
    file: Path, clock: Clock, content: bytes, problem: str
) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidConfig, match=problem) as caught:
        gate(clock, key_file=file)
    assert caught.value.details["field"] == "auth.key_file"
    assert b"just-a-secret" not in str(caught.value).encode(), "what is in the file may be secret"


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, passphrase: bytes | None = None) -> bytes:
    how = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (pem(rsa.generate_private_key(65537, 1024)), "1024 bits"),
        (pem(ec.generate_private_key(ec.SECP384R1())), "P-256 is needed"),
        (pem(ec.generate_private_key(ec.SECP256R1()), b"hush"), "passphrase"),
    ],
)
def test_weak_and_locked_pem_keys_are_refused(file: Path, clock: Clock, content: bytes, problem: str) -> None:
    file.write_bytes(content)
    with pytest.raises(InvalidConfig, match=problem):
        gate(clock, key_file=file)


def test_a_public_key_as_the_secret_setting_is_refused(clock: Clock) -> None:
    public = RS.jose.public_key
    assert isinstance(public, rsa.RSAPublicKey)
    text = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    with pytest.raises(InvalidConfig) as caught:
        gate(clock, token_secret=SecretText(text))
    assert "BEGIN PUBLIC" not in str(caught.value)


def test_a_key_file_that_everybody_can_write_is_refused(file: Path, clock: Clock) -> None:
    write_keys(file, HS.private()).chmod(0o666)
    with pytest.raises(InvalidConfig, match="written by everybody"):
        gate(clock, key_file=file)


def test_secrets_that_everybody_can_read_are_warned_of_but_public_keys_are_not(file: Path, clock: Clock) -> None:
    with structlog.testing.capture_logs() as logs:
        write_keys(file, ED.public()).chmod(0o644)
        gate(clock, key_file=file)
        assert logs == []
        write_keys(file, ED.private()).chmod(0o644)
        gate(clock, key_file=file)
    assert [line["event"] for line in logs] == ["file with secrets can be read by everybody (chmod 600)"]


def test_a_missing_key_file_is_told(file: Path, clock: Clock) -> None:
    with pytest.raises(InvalidConfig, match=r"auth\.key_file cannot be .*: No such file or directory"):
        gate(clock, key_file=file)


async def test_two_keys_of_one_name_are_both_tried(file: Path, clock: Clock) -> None:
    other = keys.generate("RS256")
    write_keys(file, {**other.public(), "kid": RS.kid}, RS.public())
    assert (await gate(clock, key_file=file).token(token(clock, RS), "")).name == "shop"


async def test_of_a_set_those_of_no_use_are_left_out(file: Path, clock: Clock) -> None:
    write_keys(file, {**RS.public(), "use": "enc"}, {"kty": "OKP", "crv": "X25519", "x": "AAAA"}, ED.public())
    door = gate(clock, key_file=file)
    assert (await door.token(token(clock, ED), "")).name == "shop"
    assert await refusal(door, token(clock, RS))


async def test_without_credentials_a_token_makes_an_anonymous_caller(clock: Clock) -> None:
    assert (await gate(clock).token("whatever", "")).method == "anonymous"
    assert claims(clock).sub == "shop"
