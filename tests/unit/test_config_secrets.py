"""Secrets are named, never written down."""

from pathlib import Path

import pytest

from turndock_server.config import ConfigError, Value, load


def write(directory: Path, text: str) -> Path:
    path = directory / "turndock.toml"
    path.write_text(text)
    return path


def test_a_reference_is_read_when_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(
        write(tmp_path, "[plugins.m]\nendpoint='exec:m'\nenv={A='plain', B={env='B_KEY'}, C={file='c.key'}}")
    )
    monkeypatch.setenv("B_KEY", "from the environment")
    (tmp_path / "c.key").write_text("from a file\n")
    assert settings.plugins["m"].environment("plugins.m") == {
        "A": "plain",
        "B": "from the environment",
        "C": "from a file",
    }
    assert sorted(settings.secrets()) == ["from a file", "from the environment"]
    assert set(settings.references()) == {"plugins.m.env.B", "plugins.m.env.C"}


@pytest.mark.parametrize(
    "entry",
    [
        "MY_API_KEY = 'abc'",
        "GITHUB_TOKEN = 'abc'",
        "DB_PASSWORD = 'abc'",
        "SETTING = 'sk-ant-" + "x" * 20 + "'",
        "DATABASE_URL = 'postgres://me:hunter2@db/x'",
    ],
)
def test_a_secret_in_the_configuration_is_refused_and_not_repeated(tmp_path: Path, entry: str) -> None:
    with pytest.raises(
        ConfigError, match=r"looks like a secret\. Secrets are given by reference only"
    ) as caught:
        load(write(tmp_path, f"[plugins.m]\nendpoint='exec:m'\n[plugins.m.env]\n{entry}"))
    assert entry.split("'")[1] not in str(caught.value)


@pytest.mark.parametrize(
    "entry", ["MAX_TOKENS = '7'", "TOKENIZER = 'bpe'", "DATABASE_URL = 'postgres://db/x'"]
)
def test_what_is_no_secret_is_accepted(tmp_path: Path, entry: str) -> None:
    assert load(write(tmp_path, f"[plugins.m]\nendpoint='exec:m'\n[plugins.m.env]\n{entry}")).plugins


@pytest.mark.parametrize(
    "config", ["{api_key='abc'}", "{n=[{password='abc'}]}", "{x='sk-abcdefghijklmnopqrst'}"]
)
def test_a_backends_table_holds_no_secret_since_it_is_stored(tmp_path: Path, config: str) -> None:
    with pytest.raises(
        ConfigError, match=r"backends.b.config: config\..* looks like a secret.*stored"
    ) as caught:
        load(write(tmp_path, f"[backends.b]\nkind='echo'\nconfig={config}"))
    assert "abc" not in str(caught.value)


def test_a_backends_table_may_name_where_secrets_are(tmp_path: Path) -> None:
    text = "[backends.b]\nkind='command'\nconfig={argv=['x'], env={API_KEY={env='THE_API_KEY'}}}"
    assert load(write(tmp_path, text)).backends


@pytest.mark.parametrize("reference", ["{}", "{env='A', file='b'}", "{env='A', literal='b'}"])
def test_a_reference_is_one_thing(tmp_path: Path, reference: str) -> None:
    with pytest.raises(ConfigError, match=r"plugins\.m\.env\.A: must be exactly one of"):
        load(write(tmp_path, f"[plugins.m]\nendpoint='exec:m'\nenv={{A={reference}}}"))


def test_a_wrong_value_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, "[server]\nlisten=['hunter2']\nhunter=3\n[store]\nbusy_timeout_ms='hunter2'"))
    assert "hunter2" not in str(caught.value)


def test_a_reference_to_nothing_says_its_key_and_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOBODY_SET_THIS", raising=False)
    monkeypatch.setenv("EMPTY", "")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for value, problem in [
        (Value(env="NOBODY_SET_THIS"), "the environment variable NOBODY_SET_THIS is not set"),
        (Value(env="EMPTY"), "what it refers to is empty"),
        (Value(file=tmp_path / "missing"), "cannot read .*missing: No such file"),
        (Value(file=tmp_path / "binary"), ".*binary is not UTF-8 text"),
    ]:
        with pytest.raises(ConfigError, match=f"^the.key: {problem}"):
            value.read("the.key")


def test_a_secret_does_not_show_in_a_representation() -> None:
    assert "hunter2" not in repr(Value(env="A")) + str(load().plugins)
