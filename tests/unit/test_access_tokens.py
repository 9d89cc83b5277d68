"""Bearer tokens: shown once, kept as digests, refused as soon as they are revoked."""

import json
import os
import stat
import time
from pathlib import Path

import pytest

from turndock.errors import TurndockError
from turndock_server.access import Role, files, tokens
from turndock_server.access.files import UnusableFileError
from turndock_server.access.tokens import Tokens


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LOOK_EVERY_S", 0.0)


def refused(checker: Tokens, token: str) -> str:
    with pytest.raises(TurndockError) as caught:
        checker.principal(token)
    assert caught.value.reason == "UNAUTHENTICATED"
    return caught.value.message


def test_the_file_knows_a_digest_and_nothing_of_the_token(path: Path) -> None:
    token, row = tokens.create(path, "ann", Role.CONTROLLER, "red")
    assert token.startswith(f"tdk_{row.id}_")
    assert len(token.rpartition("_")[2]) >= 43 or "_" in token[13:]
    written = path.read_text()
    assert token not in written
    assert token[13:] not in written
    assert json.loads(written)["tokens"][0]["sha256"] == tokens.digest(token)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tokens.read(path)] == ["ann"]


def test_a_token_leads_to_its_principal(path: Path) -> None:
    token, _ = tokens.create(path, "ann", Role.OBSERVER, "red", int(time.time()) + 60)
    everything, _ = tokens.create(path, "ops", Role.ADMIN)
    checker = Tokens(path)
    who = checker.principal(token)
    assert (who.name, who.role, who.scope) == ("ann", Role.OBSERVER, "red")
    assert who.expires_at is not None
    assert (checker.principal(everything).role, checker.principal(everything).scope) == (Role.ADMIN, None)


def test_every_other_token_is_refused_in_the_same_words(path: Path) -> None:
    token, row = tokens.create(path, "ann", Role.OBSERVER, "red")
    checker = Tokens(path)
    wrong = (
        token[:-1] + ("A" if token[-1] != "A" else "B"),
        token[:-1],
        token + "A",
        f"tdk_{row.id}_",
        "tdk_00000000_" + token[13:],
        row.sha256,
        "",
        "tdk_",
    )
    for other in wrong:
        assert refused(checker, other) == "the token is not valid"


def test_an_expired_token_is_refused(path: Path) -> None:
    token, _ = tokens.create(path, "ann", Role.OBSERVER, "red", int(time.time()) - 1)
    assert refused(Tokens(path), token) == "the token has expired"


def test_a_revoked_token_is_refused_and_the_others_are_not(path: Path, impatient: None) -> None:
    first, row = tokens.create(path, "ann", Role.OBSERVER, "red")
    second, _ = tokens.create(path, "bob", Role.OBSERVER, "red")
    checker = Tokens(path)
    assert checker.principal(first).name == "ann"
    assert tokens.revoke(path, row.id).name == "ann"
    assert refused(checker, first) == "the token is not valid"
    assert checker.principal(second).name == "bob"
    third, _ = tokens.create(path, "eve", Role.OBSERVER, "red")
    assert checker.principal(third).name == "eve"


def test_a_file_that_is_broken_or_gone_leaves_no_token_valid(
    path: Path, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    token, _ = tokens.create(path, "ann", Role.OBSERVER, "red")
    content = path.read_bytes()
    checker = Tokens(path)
    path.write_text("{")
    assert refused(checker, token) == "the token is not valid"
    path.write_bytes(content)
    assert checker.principal(token).name == "ann"
    path.unlink()
    assert refused(checker, token) == "the token is not valid"
    assert caplog.text.count("no token is valid until this is mended") == 2


def test_names_may_be_revoked_where_only_one_token_has_them(path: Path) -> None:
    tokens.create(path, "ann", Role.OBSERVER, "red")
    tokens.create(path, "ann", Role.OBSERVER, "blue")
    with pytest.raises(UnusableFileError, match="several tokens have the id or name 'ann'"):
        tokens.revoke(path, "ann")
    with pytest.raises(UnusableFileError, match="no token has the id or name 'bob'"):
        tokens.revoke(path, "bob")
    assert len(tokens.read(path)) == 2


def test_a_token_without_a_scope_is_an_admins(path: Path) -> None:
    with pytest.raises(UnusableFileError, match="needs a scope"):
        tokens.create(path, "ann", Role.CONTROLLER)
    assert not path.exists()
    tokens.create(path, "ann", Role.ADMIN)
    path.write_text(path.read_text().replace('"admin"', '"observer"'))
    with pytest.raises(UnusableFileError, match="a token without a scope must have the role admin"):
        Tokens(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no token file"),
        ("[]", "is no token file"),
        ('{"tokens": [{"id": "x"}]}', "is no token file: tokens.0"),
        ('{"version": 2}', "version"),
        ("tdk_0123abcd_secret", "is no token file"),
    ],
)
def test_a_file_of_another_kind_is_refused_and_not_shown(path: Path, text: str, why: str) -> None:
    path.write_text(text)
    with pytest.raises(UnusableFileError, match=why) as caught:
        Tokens(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 129])
def test_a_name_is_one_line(path: Path, name: str) -> None:
    with pytest.raises(UnusableFileError, match="name"):
        tokens.create(path, name, Role.ADMIN)
    assert not path.exists()


def test_a_write_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens.create(path, "ann", Role.ADMIN)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnusableFileError, match="No space left on device"):
        tokens.create(path, "bob", Role.ADMIN)
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["tokens.json", "tokens.json.lock"]
