"""The tables about safety: what does not fit together is refused, by its key and with what to do."""

from pathlib import Path

import pytest

from turndock_server.config import ConfigError, load

PAIR = 'tls = {cert = "c.pem", key = "c.key"}\n'
MUTUAL = 'tls = {cert = "c.pem", key = "c.key", client_ca = "ca.pem"}\n'
JWT = 'issuer = "i"\naudience = "a"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "turndock.toml"
    path.write_text(text)
    return path


def faults(folder: Path, text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(write(folder, text))
    return {fault.key: str(fault) for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("text", "key", "why"),
    [
        ('tls = {cert = "c.pem"}', "tls.key", "is missing"),
        ('tls = {key = "c.key"}', "tls.key", "means nothing without tls.cert"),
        ('tls = {client_ca = "ca.pem"}', "tls.client_ca", "means nothing without tls.cert"),
        ('server.listen = "grpcs://127.0.0.1:1"', "tls.cert", "is missing, and server.listen says grpcs://"),
        (PAIR + 'server.listen = "unix:/run/t"', "tls.cert", "a unix socket never leaves the machine"),
        ('[jwt]\nissuer = "i"', "jwt.issuer", "means nothing without jwt.algorithms"),
        ('[jwt]\nalgorithms = ["none"]', "jwt.algorithms.0", "input should be"),
        (f'[jwt]\nalgorithms = ["HS256", "RS256"]\n{JWT}keys = "k"', "jwt.algorithms", "mixes"),
        (f'[jwt]\nalgorithms = ["HS256"]\n{JWT}', "jwt.secret", "is missing"),
        (f'[jwt]\nalgorithms = ["RS256"]\n{JWT}', "jwt.keys", "is missing"),
        (
            f'[jwt]\nalgorithms = ["RS256"]\n{JWT}keys = "k"\nsecret = {{env = "X"}}',
            "jwt.secret",
            "is of no use",
        ),
        ('[jwt]\nalgorithms = ["RS256"]\nkeys = "k"\naudience = "a"', "jwt.issuer", "is missing"),
        ('[jwt]\nalgorithms = ["RS256"]\nkeys = "k"\nissuer = "i"', "jwt.audience", "is missing"),
        ('[jwt]\nsecret = "in the clear"', "jwt.secret", "is no reference"),
        ('[certificates.a]\nname = "a"\nrole = "admin"', "certificates.a", "without tls.client_ca"),
        (MUTUAL + '[certificates.a]\nname = "a"\nrole = "observer"', "certificates.a.scope", "is missing"),
        (
            MUTUAL
            + '[certificates.a]\nname = "a"\nrole = "admin"\n[certificates.b]\nname = "a"\nrole = "admin"',
            "certificates.b.name",
            "is that of certificates.a, too",
        ),
        ('[plugins.p]\nendpoint = "h:1"\ntls = {ca = "c"}', "plugins.p.tls", "is only for grpcs://"),
        ('[plugins.p]\nendpoint = "exec:m"\ntls = {ca = "c"}', "plugins.p.tls", "is only for grpcs://"),
        ('[plugins.p]\nendpoint = "grpcs://h:1"\ntls = {cert = "c"}', "plugins.p.tls.key", "go together"),
        ("limits.max_calls_per_scope = 0", "limits.max_calls_per_scope", "greater than or equal to 1"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, text: str, key: str, why: str) -> None:
    found = faults(tmp_path, text)
    assert why in found[key].lower() or why in found[key]
    assert "in the clear" not in str(found)


def test_an_address_that_others_can_reach_needs_encryption_or_a_word(tmp_path: Path) -> None:
    listen = 'server.listen = "0.0.0.0:7420"\n'
    assert "give tls.cert and tls.key" in faults(tmp_path, listen)["server.listen"]
    assert "server.listen" in faults(tmp_path, listen + 'auth.tokens = "t.json"')
    assert load(write(tmp_path, listen + PAIR)).tls.cert == tmp_path / "c.pem"
    assert load(write(tmp_path, listen + "server.insecure = true")).server.insecure


def test_paths_are_relative_to_the_file_and_secrets_are_known_to_the_redactor(tmp_path: Path) -> None:
    (tmp_path / "jwt.key").write_text("0123456789abcdef0123456789abcdef\n")
    text = (
        f'auth.tokens = "t.json"\n{MUTUAL}[jwt]\nalgorithms = ["HS256"]\n{JWT}secret = {{file = "jwt.key"}}'
    )
    text += '\n[plugins.p]\nendpoint = "grpcs://h:1"\ntls = {ca = "p.pem"}'
    settings = load(write(tmp_path, text))
    assert settings.auth.tokens == tmp_path / "t.json"
    assert settings.tls.client_ca == tmp_path / "ca.pem"
    assert settings.plugins["p"].tls.ca == tmp_path / "p.pem"
    assert settings.secrets() == ["0123456789abcdef0123456789abcdef"]
    assert settings.authenticates
    assert not load(write(tmp_path, "")).authenticates
