"""What a host is told: the file, the environment, the command line, and what they must not say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from turndock.types.v1 import AgentLimits, CaptureMode, HostLostPolicy
from turndock_server import config
from turndock_server.config import ConfigError, Settings, load


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and an environment that says nothing."""
    import os

    for name in [name for name in os.environ if name.startswith("TURNDOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def file(text: str, name: str = "turndock.toml") -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def faults(text: str) -> dict[str, str]:
    """Key → what is wrong with it, of a file that is refused."""
    with pytest.raises(ConfigError) as caught:
        load(file(text))
    return {fault.key: f"{fault.problem}. {fault.remedy}" for fault in caught.value.faults}


def test_a_host_needs_no_configuration() -> None:
    settings = load()
    assert settings == Settings()
    assert settings.server.listen == "127.0.0.1:7420"
    assert settings.store_path == Path("turndock-data/turndock.db")
    assert settings.artifacts_path == Path("turndock-data/artifacts")
    assert settings.offered_backends()["echo"].kind == "echo"


def test_a_bare_settings_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNDOCK_SERVER__LISTEN", "127.0.0.1:1")
    file("server.listen = '127.0.0.1:2'")
    assert Settings().server.listen == "127.0.0.1:7420"


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file("""
        [server]
        listen = "127.0.0.1:1"
        reflection = false
        grace_seconds = 1
    """)
    monkeypatch.setenv("TURNDOCK_SERVER__LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("TURNDOCK_SERVER__GRACE_SECONDS", "2")
    settings = load(overrides={"server": {"listen": "127.0.0.1:3"}})
    assert settings.server.listen == "127.0.0.1:3"
    assert settings.server.grace_seconds == 2
    assert settings.server.reflection is False


def test_the_file_is_the_one_asked_for_then_the_environments_then_the_one_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file("data = 'here'")
    assert load().data == Path("here")
    monkeypatch.setenv("TURNDOCK_CONFIG", str(file("data = 'there'", "elsewhere/x.toml")))
    assert load().data == Path("elsewhere/there")
    assert load(file("data = '/asked'", "asked.toml")).data == Path("/asked")


def test_a_file_that_was_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: no such file"):
        load(Path("missing.toml"))
    monkeypatch.setenv("TURNDOCK_CONFIG", "gone.toml")
    with pytest.raises(ConfigError, match=r"gone\.toml: no such file"):
        load()


def test_a_file_that_is_no_toml_is_refused_with_the_line() -> None:
    with pytest.raises(ConfigError, match=r"turndock\.toml: is no TOML: .*line 2"):
        load(file("[server]\nlisten = oh\n"))


def test_a_relative_path_in_a_file_is_relative_to_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(
        """
        data = "data"
        store.path = "db/x.db"
        [plugins.model]
        endpoint = "exec:model"
        env.KEY = {file = "secrets/key"}
        [plugins.model.env.WORKDIR]
        literal = "stays/as/it/is"
        """,
        "etc/turndock.toml",
    )
    settings = load(path)
    assert settings.data == Path("etc/data")
    assert settings.store.path == Path("etc/db/x.db")
    assert settings.plugins["model"].env["KEY"].file == Path("etc/secrets/key")
    assert settings.plugins["model"].env["WORKDIR"].literal == "stays/as/it/is"
    monkeypatch.setenv("TURNDOCK_DATA", "elsewhere")
    assert load(path).data == Path("elsewhere")
    assert load(path, {"data": "at/hand"}).data == Path("at/hand")


@pytest.mark.parametrize(
    ("text", "key", "remedy"),
    [
        ("[server]\nlistn = 'x'", "server.listn", "Did you mean server.listen?"),
        ("[sever]\nlisten = 'x'", "sever", "Did you mean server?"),
        ("[store]\nzzz = 1", "store.zzz", "Known here: busy_timeout_ms, kind, path, synchronous"),
        (
            "[plugins.a]\nendpoint='h:1'\nrequird=true",
            "plugins.a.requird",
            "Did you mean plugins.a.required?",
        ),
        ("[backends.a]\nkind='echo'\nConfig={}", "backends.a.Config", "Did you mean backends.a.config?"),
        (
            "[plugins.a]\nendpoint='exec:x'\nenv.A={fil='x'}",
            "plugins.a.env.A.fil",
            "Did you mean plugins.a.env.A.file?",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(text: str, key: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file(text))
    (fault,) = (fault for fault in caught.value.faults if fault.key == key)
    assert (fault.problem, fault.remedy, fault.source) == ("unknown key", remedy, "turndock.toml")


def test_everything_that_is_wrong_is_said_at_once() -> None:
    assert set(faults("[server]\nlistn=1\ngrace_seconds=-1\n[log]\nlevel='loud'\n[backends.a]")) == {
        "server.listn",
        "server.grace_seconds",
        "log.level",
        "backends.a.kind",
    }


def test_an_unknown_variable_is_refused_with_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNDOCK_SERVER__LISTN", "127.0.0.1:1")
    with pytest.raises(
        ConfigError, match=r"TURNDOCK_SERVER__LISTN: server\.listn: unknown key.*server\.listen"
    ):
        load()
    monkeypatch.delenv("TURNDOCK_SERVER__LISTN")
    monkeypatch.setenv("TURNDOCK_SEVER__LISTEN", "127.0.0.1:1")
    with pytest.raises(
        ConfigError, match=r"TURNDOCK_SEVER__LISTEN: sever: unknown key\. Did you mean server"
    ):
        load()


def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`TURNDOCK_SERVER` is the command line's, and a cluster sets more of the prefix for every service it runs."""
    for name in ("SERVER", "TOKEN", "SCOPE", "PORT", "PORT_7420_TCP", "PLUGIN_ENDPOINT", "LOG"):
        monkeypatch.setenv(f"TURNDOCK_{name}", "tcp://10.0.0.1:7420")
    assert load() == Settings()


def test_variables_reach_tables_of_tables_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNDOCK_BACKENDS__MODEL__KIND", "echo")
    monkeypatch.setenv("TURNDOCK_BACKENDS__MODEL__CONFIG", '{"delay_ms": 3}')
    monkeypatch.setenv("TURNDOCK_REDACTION__PATTERNS", '["a+", "b+"]')
    monkeypatch.setenv("TURNDOCK_PLUGINS__TOOL__ENDPOINT", "exec:tool")
    monkeypatch.setenv("TURNDOCK_PLUGINS__TOOL__ENV", '{"HOME": "/x", "API_KEY": {"env": "KEY"}}')
    monkeypatch.setenv("TURNDOCK_STORE__PATH", "")
    settings = load()
    assert settings.backends["model"].config == {"delay_ms": 3}
    assert settings.redaction.patterns == ("a+", "b+")
    assert settings.plugins["tool"].env["HOME"].literal == "/x"
    assert settings.plugins["tool"].env["API_KEY"].env == "KEY"
    assert settings.store.path is None


def test_a_variable_that_is_no_json_where_it_must_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNDOCK_REDACTION__PATTERNS", "[secret")
    with pytest.raises(ConfigError, match="redaction") as caught:
        load()
    assert "[secret" not in str(caught.value)


def test_nothing_can_be_reached_from_other_machines_unless_it_is_meant_so() -> None:
    for listen in ("0.0.0.0:7420", "[::]:7420", "10.0.0.1:7420", "example.com:7420"):
        text = faults(f"server.listen = '{listen}'")["server.listen"]
        assert "can be reached from other machines" in text
        assert "server.insecure = true" in text
        assert load(file(f"server.listen = '{listen}'\nserver.insecure = true")).server.listen == listen
    for listen in ("127.0.0.1:7420", "[::1]:7420", "localhost:7420", "unix:/run/turndock.sock"):
        assert load(file(f"server.listen = '{listen}'")).server.listen == listen


@pytest.mark.parametrize("listen", ["7420", "http://127.0.0.1:7420", "127.0.0.1:99999", "unix:"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    assert "server.listen" in faults(f"server.listen = '{listen}'")


def test_a_plug_in_that_is_used_must_be_described() -> None:
    text = """
        store.kind = "plugin:db"
        artifacts.kind = "plugin:blobs"
        persistence.kind = "plugin:snapshots"
        [backends.a]
        kind = "plugin"
        [backends.b]
        kind = "plugin"
        plugin = "modl"
        [backends.c]
        kind = "echo"
        plugin = "model"
        [behaviors.d]
        kind = "plugin"
        plugin = "modl"
        [plugins.model]
        endpoint = "h:1"
    """
    found = faults(text)
    assert set(found) == {
        "store.kind",
        "artifacts.kind",
        "persistence.kind",
        "backends.a.plugin",
        "backends.b.plugin",
        "backends.c.plugin",
        "behaviors.d.plugin",
    }
    assert "Did you mean model?" in found["backends.b.plugin"]
    assert "Did you mean model?" in found["behaviors.d.plugin"]


def test_stores_may_be_plug_ins_and_are_then_required() -> None:
    settings = load(file("store.kind='plugin:db'\n[plugins.db]\nendpoint='h:1'\n[plugins.x]\nendpoint='h:2'"))
    assert settings.store.plugin == "db"
    assert settings.artifacts.plugin is None
    assert settings.required_plugins() == {"db"}
    settings = load(file("persistence.kind='plugin:x'\n[plugins.x]\nendpoint='h:2'"))
    assert settings.persistence.plugin == "x"
    assert settings.required_plugins() == {"x"}


@pytest.mark.parametrize("kind", ["postgres", "plugin:", ""])
def test_a_kind_of_store_that_there_is_not_is_refused(kind: str) -> None:
    assert "must be sqlite, memory or plugin:<name>" in faults(f"store.kind = '{kind}'")["store.kind"]


def test_snapshots_are_kept_only_if_asked_for() -> None:
    assert load().persistence.kind == "none"
    assert (
        "must be none, store, memory or plugin:<name>"
        in faults("persistence.kind = 'redis'")["persistence.kind"]
    )
    assert "persistence.timeout_seconds" in faults("persistence.timeout_seconds = 0")


def test_a_key_that_its_kind_does_not_have_is_refused() -> None:
    text = """
        store = {kind = "memory", path = "x"}
        artifacts = {kind = "memory", path = "x"}
        plugins.x = {endpoint = "h:1", env = {A = "b"}}
    """
    assert set(faults(text)) == {"store.path", "artifacts.path", "plugins.x.env"}


def test_a_prompt_must_fit_into_a_message() -> None:
    text = "server.max_message_bytes = 1048576\nlimits.max_prompt_bytes = 1048576"
    assert "Make it 983040 or less" in faults(text)["limits.max_prompt_bytes"]


def test_an_exec_endpoint_is_split_as_a_shell_would() -> None:
    settings = load(file("""plugins.m.endpoint = "exec:python -m 'my model' --name \\"a b\\"" """))
    assert settings.plugins["m"].command == ("python", "-m", "my model", "--name", "a b")
    assert load(file("plugins.m.endpoint = 'unix:/run/m.sock'")).plugins["m"].command == ()
    assert "cannot be split" in faults("plugins.m.endpoint = 'exec:a \"b'")["plugins.m.endpoint"]
    assert "no command line" in faults("plugins.m.endpoint = 'exec: '")["plugins.m.endpoint"]


def test_names_are_plain_words() -> None:
    assert "is no name" in faults("[plugins.'a b']\nendpoint = 'h:1'")["plugins.a b"]
    assert list(load(file("[plugins.My-model_2]\nendpoint = 'h:1'")).plugins) == ["My-model_2"]


def test_limits_are_those_of_an_agent() -> None:
    limits = load(
        file(
            "[limits]\nwatchdog_ms = 0\nmax_tokens = 7\ncapture_mode = 'lossless'\nhost_lost_policy = 'retry'"
        )
    )
    assert limits.limits.agent_limits() == AgentLimits(
        watchdog_ms=0,
        inactivity_ms=0,
        idle_shutdown_ms=300_000,
        max_pending_prompts=1000,
        max_pending_bytes=1 << 20,
        max_events_per_turn=1000,
        max_event_bytes_per_turn=1 << 20,
        capture_mode=CaptureMode.CAPTURE_MODE_LOSSLESS,
        max_tokens=7,
        host_lost_policy=HostLostPolicy.HOST_LOST_POLICY_RETRY,
        max_pending_notifications=1000,
    )
    assert {field.name for field in AgentLimits.DESCRIPTOR.fields} <= set(config.LimitSettings.model_fields)


def test_a_table_for_a_backend_is_json() -> None:
    settings = load(file("[backends.e]\nkind = 'echo'\nconfig = {b = 1, a = [true, 'x']}"))
    assert settings.backends["e"].config_json == '{"a":[true,"x"],"b":1}'
    assert "is no JSON" in faults("[backends.e]\nkind='echo'\nconfig={a=2020-01-01}")["backends.e.config"]
    assert "is no JSON" in faults("[backends.e]\nkind='echo'\nconfig={a=inf}")["backends.e.config"]


@pytest.mark.parametrize(
    ("pattern", "why"), [("(", "no regular expression"), ("a*", "matches the empty text")]
)
def test_a_pattern_that_cannot_work_is_refused(pattern: str, why: str) -> None:
    assert why in faults(f"redaction.patterns = ['ok', '{pattern}']")["redaction.patterns"]


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        setattr(load().server, "listen", "127.0.0.1:1")  # noqa: B010 - what a type checker would not let pass


def test_a_configuration_is_read_without_grpc_or_sqlalchemy() -> None:
    program = "import sys, turndock_server.config as c; c.load()\n"
    program += "sys.exit(bool({'grpc', 'sqlalchemy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_page_and_the_example_are_what_the_settings_say(repository: Path) -> None:
    tool = repository / "tools" / "generate_config_docs.py"
    assert subprocess.run([sys.executable, tool, "--check"], check=False).returncode == 0
    example = repository / "turndock.example.toml"
    assert load(example).data == example.parent / "turndock-data"


def test_the_example_still_holds_when_all_of_it_is_switched_on(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every commented-out key of the example is a real one with its real default, or a value that is accepted."""
    text = (repository / "turndock.example.toml").read_text()
    live = re.sub(r"^# ?(?=\[|[a-z_.]+ = )", "", text, flags=re.MULTILINE)
    assert live != text
    monkeypatch.setenv("MODEL_API_KEY", "x")
    assert load(file(live)).plugins
