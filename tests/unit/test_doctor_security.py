"""What `turndock doctor` says of certificates, keys, tokens and who may call."""

import datetime
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.secured import Authority
from turndock_server.access import Role, tokens
from turndock_server.config import Settings
from turndock_server.doctor import CHECKS, Finding, Level, security

NOW = datetime.datetime.now(datetime.UTC)


def by_subject(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


def settings_of(**tables: Any) -> Settings:
    """Settings of tables as a file has them."""
    return Settings(**tables)


def encrypted(folder: Path, **server: Any) -> Settings:
    files = {"cert": folder / "server.pem", "key": folder / "server.key"}
    return settings_of(tls=files, server={"listen": "0.0.0.0:7420", **server})


def test_it_looks_at_all_of_it() -> None:
    assert {
        security.exposure,
        security.certificates,
        security.authentication,
        security.plugin_encryption,
    } <= set(CHECKS)


def test_an_encrypted_server_where_everybody_may_do_everything_is_a_warning(tmp_path: Path) -> None:
    finding = by_subject(security.exposure(encrypted(tmp_path)))["auth"]
    assert (finding.level, "nobody has to say who they are" in finding.what) == (Level.WARNING, True)
    asked = encrypted(tmp_path).model_copy(
        update={"auth": settings_of(auth={"tokens": tmp_path / "t.json"}).auth}
    )
    assert by_subject(security.exposure(asked))["server.listen"].level is Level.OK


def test_tokens_that_travel_in_the_clear_are_a_warning(tmp_path: Path) -> None:
    exposed = settings_of(
        server={"listen": "0.0.0.0:7420", "insecure": True}, auth={"tokens": tmp_path / "t.json"}
    )
    [finding] = security.exposure(exposed)
    assert (finding.level, "reads every token in the clear" in finding.what) == (Level.WARNING, True)


@pytest.mark.parametrize(
    ("days", "level", "what"),
    [(-1, Level.ERROR, "expired on"), (7, Level.WARNING, "expires on"), (90, Level.OK, "is valid until")],
)
def test_a_certificate_is_looked_at_for_its_end(tmp_path: Path, days: int, level: Level, what: str) -> None:
    Authority(tmp_path).issue("server", ends=NOW + datetime.timedelta(days=days))
    finding = by_subject(security.certificates(encrypted(tmp_path)))["tls.cert"]
    assert finding.level is level
    assert what in finding.what


def test_a_key_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    Authority(tmp_path).issue("server")
    assert "tls.key" not in by_subject(security.certificates(encrypted(tmp_path)))
    (tmp_path / "server.key").chmod(0o644)
    finding = by_subject(security.certificates(encrypted(tmp_path)))["tls.key"]
    assert (finding.level, finding.mend) == (Level.WARNING, f"chmod 600 {tmp_path / 'server.key'}")


def test_files_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("server")
    (tmp_path / "server.key").write_bytes(Path(str(authority.issue("other").key)).read_bytes())
    assert by_subject(security.certificates(encrypted(tmp_path)))["tls.cert"].level is Level.ERROR
    (tmp_path / "server.key").unlink()
    assert by_subject(security.certificates(encrypted(tmp_path)))["tls.key"].level is Level.ERROR


def test_tokens_are_counted_and_their_file_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    settings = settings_of(auth={"tokens": path})
    [finding] = security.authentication(settings)
    assert (finding.level, "cannot read" in finding.what) == (Level.ERROR, True)
    token, _ = tokens.create(path, "old", Role.ADMIN, expires_at=1)
    assert by_subject(security.authentication(settings))["auth.tokens"].what == "no token is valid"
    tokens.create(path, "new", Role.ADMIN)
    [finding] = security.authentication(settings)
    assert (finding.level, finding.what) == (Level.OK, "1 tokens are valid, 1 have expired")
    path.chmod(0o666)
    found = list(security.authentication(settings))
    assert [one.level for one in found] == [Level.ERROR, Level.OK]
    assert "could add tokens of their own" in found[0].what
    path.write_text(f'{{"tokens": ["{token}"]}}')
    found = list(security.authentication(settings))
    assert "holds a token in the clear" in found[0].what
    assert not any(token in one.what + one.mend for one in found)


def test_a_plug_in_elsewhere_should_be_encrypted() -> None:
    plugins = {
        "near": {"endpoint": "127.0.0.1:1"},
        "far": {"endpoint": "grpc://models.example:1"},
        "safe": {"endpoint": "grpcs://models.example:1"},
        "own": {"endpoint": "exec:model"},
    }
    [finding] = security.plugin_encryption(settings_of(plugins=plugins))
    assert (finding.level, finding.subject) == (Level.WARNING, "plugins.far.endpoint")
    assert finding.mend == "Use grpcs://models.example:1"
