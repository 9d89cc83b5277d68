"""JSON Web Tokens: what is signed by the right key, for this server, and in time; nothing else."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from turndock.errors import TurndockError
from turndock_server.access import Role, files
from turndock_server.access.files import UnusableFileError
from turndock_server.access.jwt import Claims, JwtVerifier, key_file, read_keys

ISSUER, AUDIENCE = "https://issuer.example", "turndock"
SECRET = b"0123456789abcdef0123456789abcdef"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())


def claims(**changes: Any) -> dict[str, Any]:
    standard = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": int(time.time()) + 60,
        "sub": "ann",
        "tenant": "red",
        "roles": ["controller"],
    }
    return {name: value for name, value in {**standard, **changes}.items() if value is not None}


def shared(**options: Any) -> JwtVerifier:
    return JwtVerifier(SECRET, algorithms=["HS256"], issuer=ISSUER, audience=AUDIENCE, **options)


def signed(payload: Mapping[str, Any], key: Any = SECRET, algorithm: str = "HS256", **header: Any) -> str:
    return jwt.encode(dict(payload), key, algorithm=algorithm, headers=header or None)


def refused(verifier: JwtVerifier, token: str) -> str:
    with pytest.raises(TurndockError) as caught:
        verifier.principal(token)
    assert caught.value.reason == "UNAUTHENTICATED"
    return caught.value.message


def key_set(tmp_path: Path, *keys: dict[str, Any]) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": keys}))
    return path


def public(key: Any, **more: str) -> dict[str, Any]:
    kind: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    made: dict[str, Any] = kind.to_jwk(key.public_key(), as_dict=True)
    return made | more


def test_a_token_leads_to_its_principal() -> None:
    who = shared().principal(signed(claims()))
    assert (who.name, who.role, who.scope) == ("ann", Role.CONTROLLER, "red")
    assert who.expires_at is not None
    assert who.expires_at > time.time()


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.example"},
        {"aud": "another"},
        {"iss": None},
        {"aud": None},
        {"exp": None},
        {"tenant": ""},
        {"tenant": 7},
        {"nbf": 1 << 40},
    ],
    ids=str,
)
def test_a_token_for_others_or_without_an_end_is_refused(changes: dict[str, Any]) -> None:
    assert refused(shared(), signed(claims(**changes))) == "the token is not valid"


def test_an_expired_token_is_refused_beyond_the_leeway() -> None:
    assert refused(shared(), signed(claims(exp=int(time.time()) - 31), SECRET)) == "the token has expired"
    assert shared().principal(signed(claims(exp=int(time.time()) - 10))).name == "ann"


def test_the_algorithm_is_the_configurations_and_not_the_tokens(tmp_path: Path) -> None:
    path = key_set(tmp_path, public(RSA_KEY, kid="k1", alg="RS256"))
    verifier = JwtVerifier(key_file(path), algorithms=["RS256"], issuer=ISSUER, audience=AUDIENCE)
    assert verifier.principal(signed(claims(), RSA_KEY, "RS256", kid="k1")).name == "ann"
    public_pem = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    confused = _signed_by_hand(claims(), public_pem)
    for token in (
        confused,
        signed(claims(), None, "none"),
        signed(claims(), RSA_KEY, "RS512", kid="k1"),
        signed(claims(), RSA_KEY, "RS256", kid="k2"),
        signed(claims(), rsa.generate_private_key(public_exponent=65537, key_size=2048), "RS256", kid="k1"),
    ):
        assert refused(verifier, token) == "the token is not valid"
    assert refused(shared(), signed(claims(), SECRET * 2, "HS512")) == "the token is not valid"


def _signed_by_hand(payload: Mapping[str, Any], key: bytes) -> str:
    """HS256 with a public key as its secret, which libraries refuse to make."""
    import base64
    import hashlib
    import hmac

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    header = part(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "k1"}).encode())
    body = f"{header}.{part(json.dumps(payload).encode())}"
    return f"{body}.{part(hmac.digest(key, body.encode(), hashlib.sha256))}"


def test_one_of_several_keys_is_found_by_its_id(tmp_path: Path) -> None:
    path = key_set(tmp_path, public(RSA_KEY, kid="old", alg="RS256"), public(EC_KEY, kid="new", alg="ES256"))
    verifier = JwtVerifier(key_file(path), algorithms=["RS256", "ES256"], issuer=ISSUER, audience=AUDIENCE)
    assert verifier.principal(signed(claims(sub="eve"), EC_KEY, "ES256", kid="new")).name == "eve"
    assert verifier.principal(signed(claims(), RSA_KEY, "RS256", kid="old")).name == "ann"
    for token in (signed(claims(), EC_KEY, "ES256"), signed(claims(), EC_KEY, "ES256", kid="old")):
        assert refused(verifier, token) == "the token is not valid"


def test_a_single_key_needs_no_id(tmp_path: Path) -> None:
    verifier = JwtVerifier(
        key_file(key_set(tmp_path, public(EC_KEY))), algorithms=["ES256"], issuer=ISSUER, audience=AUDIENCE
    )
    assert verifier.principal(signed(claims(), EC_KEY, "ES256")).scope == "red"


@pytest.mark.parametrize(
    ("roles", "role"),
    [
        (["observer", "admin", "chef"], Role.ADMIN),
        ("observer controller", Role.CONTROLLER),
        ([], Role.NONE),
        (None, Role.NONE),
        ("ADMIN", Role.NONE),
        ([7, {"a": 1}], Role.NONE),
        (7, Role.NONE),
    ],
)
def test_the_highest_known_role_counts(roles: object, role: Role) -> None:
    assert shared().principal(signed(claims(roles=roles))).role is role


def test_claims_may_have_other_names_and_lie_deeper() -> None:
    named = Claims("email", "org.id", "realm_access.roles", {"ops": Role.ADMIN})
    token = signed(
        claims(email="a@b", org={"id": "blue"}, realm_access={"roles": ["ops", "observer"]}, tenant="red")
    )
    who = shared(claims=named).principal(token)
    assert (who.name, who.scope, who.role) == ("a@b", "blue", Role.ADMIN)
    other = shared(claims=Claims(scope="https://x.example/tenant")).principal(
        signed(claims(**{"https://x.example/tenant": "green"}))
    )
    assert other.scope == "green"


@pytest.mark.parametrize("token", ["..", "a.b.c", "eyJhbGciOiJIUzI1NiJ9..", "é.é.é"])
def test_what_is_no_token_is_refused(token: str) -> None:
    assert refused(shared(), token) == "the token is not valid"


@pytest.mark.parametrize(
    "odd", [{"exp": 10**400}, {"tenant": "red\ud800"}, {"tenant": "red\0"}, {"tenant": "x" * 2_000}]
)
def test_a_claim_that_nothing_can_hold_is_refused(odd: dict[str, Any]) -> None:
    assert refused(shared(), signed(claims(**odd))) == "the token is not valid"


def test_a_name_is_one_short_line_whatever_the_issuer_says() -> None:
    assert shared().principal(signed(claims(sub="a\nb\0c\ud800"))).name == "a\ufffdb\ufffdc\ufffd"
    assert shared().principal(signed(claims(sub="x" * 4_000))).name == "x" * 128


def test_a_key_set_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableFileError, match="cannot read"):
        read_keys(tmp_path / "missing.json")
    for content in ("{", "[]", "{}", '{"keys": []}', '{"keys": [{"kty": "odd"}]}'):
        path = tmp_path / "keys.json"
        path.write_text(content)
        with pytest.raises(UnusableFileError, match="is no JSON Web Key Set"):
            read_keys(path)
    with pytest.raises(UnusableFileError, match="shared secret"):
        read_keys(key_set(tmp_path, {"kty": "oct", "k": "c2VjcmV0", "alg": "HS256"}))
    with pytest.raises(UnusableFileError, match="each needs a kid"):
        read_keys(key_set(tmp_path, public(RSA_KEY), public(EC_KEY)))


def test_an_issuer_may_change_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LOOK_EVERY_S", 0.0)
    path = key_set(tmp_path, public(RSA_KEY, kid="old", alg="RS256"))
    verifier = JwtVerifier(key_file(path), algorithms=["RS256", "ES256"], issuer=ISSUER, audience=AUDIENCE)
    old, new = signed(claims(), RSA_KEY, "RS256", kid="old"), signed(claims(), EC_KEY, "ES256", kid="new")
    assert verifier.principal(old).name == "ann"
    assert refused(verifier, new) == "the token is not valid"
    key_set(tmp_path, public(EC_KEY, kid="new", alg="ES256"))
    assert verifier.principal(new).name == "ann"
    assert refused(verifier, old) == "the token is not valid"
    path.unlink()
    assert refused(verifier, new) == "the token is not valid"
