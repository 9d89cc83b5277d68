"""The command line as far as it goes without a server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from turndock import events
from turndock.errors import TurndockError
from turndock.types.v1 import (
    ArtifactReference,
    Event,
    EventType,
    Failure,
    MessageStreamed,
    RunCompleted,
    RunFailed,
    TokenUsageUpdated,
    ToolCallStarted,
    Usage,
)
from turndock_server import __version__
from turndock_server.cli import artifacts, output
from turndock_server.cli.connection import refused
from turndock_server.cli.rendering import event_line, gist
from turndock_server.cli.root import app

COMMANDS = [
    ("serve",),
    ("demo",),
    ("doctor",),
    *(("agents", name) for name in ("start", "list", "show", "stop")),
    ("ask",),
    ("tell",),
    ("watch",),
    ("interrupt",),
    ("notify",),
    ("unhalt",),
    *(("runs", name) for name in ("list", "show", "cancel", "edit")),
    *(("sessions", name) for name in ("list", "search", "stats", "show", "delete", "export", "import")),
    ("usage",),
    *(("approvals", name) for name in ("list", "approve", "edit", "reject")),
    *(("artifacts", name) for name in ("put", "get", "list", "delete")),
    *(("maintenance", name) for name in ("run", "check")),
    *(("tokens", name) for name in ("create", "list", "revoke")),
    ("info",),
]
LOCAL = {"serve", "demo", "doctor", "tokens"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and an environment that says nothing."""
    for name in [name for name in os.environ if name.startswith("TURNDOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_finds_its_server_the_same_way(command: tuple[str, ...]) -> None:
    shown = run(*command, "--help")
    assert shown.exit_code == 0
    assert ("--server" in shown.output) is (command[0] not in LOCAL)
    assert ("TURNDOCK_SCOPE" in shown.output) is (command[0] not in LOCAL)


def test_the_version_is_said() -> None:
    assert run("--version").output == f"turndock {__version__}\n"


def test_without_a_command_the_help_is_shown() -> None:
    assert "Exit codes: 0 done" in run().output


def test_help_loads_nothing_it_does_not_need() -> None:
    program = (
        "import sys\nfrom turndock_server.cli import main\nsys.argv = ['turndock', 'agents', 'start', '--help']\n"
        "try: main()\nexcept SystemExit: pass\n"
        "loaded = {'grpc', 'sqlalchemy', 'google.protobuf'} & set(sys.modules)\n"
        "sys.exit(', '.join(loaded) or 0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("module", ["typer", "pydantic_settings"])
def test_a_base_install_says_what_to_install(module: str) -> None:
    program = (
        f"import sys\nsys.modules[{module!r}] = None\nfrom turndock_server.cli import main\n"
        "sys.argv = ['turndock', 'doctor']\nmain()"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == f'turndock: {module} is not installed. Run: pip install "turndock[server]"\n'


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("agents", "start", "a"), "--backend"),
        (("agents", "start", "a", "-b", "echo", "--limit", "watchdog_ms"), "is not KEY=VALUE"),
        (("agents", "start", "a", "-b", "echo", "--limit", "nonsense=1"), "Limits are: watchdog_ms"),
        (("agents", "start", "a", "-b", "echo", "--limit", "watchdog_ms=soon"), "is a whole number"),
        (("agents", "start", "a", "-b", "echo", "--limit", "capture_mode=x"), "is compact or lossless"),
        (("agents", "start", "a", "-b", "echo", "--backend-config", "{"), "is not acceptable JSON"),
        (("agents", "start", "a", "-b", "echo", "--backend-config", "[1]"), "must be a JSON object"),
        (("agents", "start", "a", "-b", "echo", "--metadata", "@missing.json"), "cannot read missing.json"),
        (("ask", "hello"), "--agent"),
        (("ask", "hello", "--agent", "a", "--busy", "panic"), "panic"),
        (("notify", "a", "not json"), "is not acceptable JSON"),
        (("runs", "edit", "a", "r"), "nothing to change"),
        (("runs", "edit", "a", "r", "--before", "q", "--to-tail"), "excludes --before"),
        (("runs", "list", "a", "--status", "gone"), "gone"),
        (("watch", "a", "--until-terminal"), "needs --run"),
        (("watch", "a", "--type", "nonsense"), "nonsense"),
        (("watch", "a", "--after", "-1"), "greater than or equal to 0"),
        (("info", "--server", "http://x"), "http"),
        (("artifacts", "put", "k", "missing.bin"), "cannot read missing.bin"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(
    arguments: tuple[str, ...], why: str
) -> None:
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert why in " ".join(ended.output.split())


def test_an_address_without_a_server_is_said_at_once() -> None:
    ended = run("info", "--server", "unix:nobody.sock")
    assert ended.exit_code == 4
    assert ended.stderr.splitlines() == [
        "turndock: no server answers at unix:nobody.sock",
        "  `turndock serve` starts one; --server or TURNDOCK_SERVER names another.",
    ]


def test_the_doctor_speaks_json(place: Path) -> None:
    ended = run("doctor", "--listen", "127.0.0.1:0", "--json")
    assert ended.exit_code == 0
    assert {finding["level"] for finding in json.loads(ended.stdout)} == {"ok"}
    (place / "turndock.toml").write_text("[server]\nlistn = 'x'")
    ended = run("doctor", "--json")
    assert ended.exit_code == 1
    assert json.loads(ended.stdout) == [
        {
            "level": "error",
            "subject": "server.listn",
            "what": "turndock.toml: unknown key",
            "mend": "Did you mean server.listen?",
        }
    ]


def test_the_doctor_counts_what_is_wrong(place: Path) -> None:
    (place / "turndock.toml").write_text("store.kind = 'memory'\n[backends.a]\nkind = 'ecko'\n")
    ended = run("doctor", "--listen", "127.0.0.1:0")
    assert ended.exit_code == 1
    assert (
        "  x  backends.a.kind: nothing of the name 'ecko' is installed\n     Did you mean echo?"
        in ended.stdout
    )
    assert ended.stdout.endswith("1 error and 1 warning\n")


def test_a_file_is_there_when_all_of_it_is_and_a_device_stays_one(place: Path) -> None:
    (place / "out").write_bytes(b"before")

    def broken() -> None:
        with artifacts.writing(Path("out")) as sink:
            sink.write(b"half")
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        broken()
    assert (place / "out").read_bytes() == b"before"
    assert [path.name for path in place.iterdir()] == ["out"]
    with artifacts.writing(Path("out")) as sink:
        sink.write(b"after")
    assert (place / "out").read_bytes() == b"after"
    with artifacts.writing(Path(os.devnull)) as sink:
        sink.write(b"gone")
    assert not Path(os.devnull).is_file()


def test_a_text_cannot_command_the_terminal() -> None:
    assert output.safe("a\x1b[2Jb\x07\x9b\r\n\tc") == "a\\x1b[2Jb\\x07\\x9b\\x0d\n\tc"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (5 << 40, "5120.0 GiB")],
)
def test_sizes_are_readable(count: int, text: str) -> None:
    assert output.size(count) == text


def test_an_enum_number_that_is_newer_is_shown_as_it_is() -> None:
    assert output.enum_name(EventType, 999, "EVENT_TYPE_") == "999"
    assert output.enum_name(EventType, 1, "EVENT_TYPE_") == "session_created"


def test_numbers_in_json_lose_no_digit() -> None:
    assert output.to_json(Event(sequence=2**53 + 1))["sequence"] == "9007199254740993"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (events.text("a\nb"), "'a\\nb'"),
        (Event(message_streamed=MessageStreamed(text="hm", thinking=True)), "'hm' thinking=True"),
        (
            Event(token_usage_updated=TokenUsageUpdated(usage=Usage(input_tokens=3, output_tokens=0))),
            "3 in, 0 out",
        ),
        (Event(run_completed=RunCompleted(stop_reason="stop", duration_us=1_234_567)), "stop 1.235 s"),
        (
            Event(run_failed=RunFailed(failure=Failure(reason="timeout", message="too slow"))),
            "timeout: too slow",
        ),
        (
            Event(tool_call_started=ToolCallStarted(tool_call_id="c1", name="ls", arguments_json="{}")),
            "tool_call_id=c1 ls arguments={}",
        ),
        (Event(offloaded=ArtifactReference(key="k", size=2048)), "2.0 KiB in artifact k"),
        (Event(), ""),
    ],
)
def test_an_event_is_a_line(event: Event, text: str) -> None:
    assert gist(event) == text
    assert "\n" not in event_line(event)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--max-events-per-session", "0"), "must be a whole number above"),
        (("--max-total-events", "1.5"), "must be a whole number above"),
        (("--max-session-age-days", "-1"), "must be a whole number above"),
        (("--batch-size", "0"), "maintenance.batch_size"),
        (("--exempt-status", "sleepy"), "maintenance.exempt_statuses"),
        (("--prune-first", "nope"), "'nope' is no event type"),
        (("--config", "missing.toml"), "no such file"),
    ],
)
def test_R_01_a_wrong_policy_is_named_before_anybody_is_called(
    arguments: tuple[str, ...], complaint: str
) -> None:
    result = run("maintenance", "run", *arguments)
    assert result.exit_code == 2
    assert complaint in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("server", "message", "advice"),
    [
        ("grpcs://h:1", "SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED: unable to get", "--tls-ca"),
        ("grpcs://h:1", "Hostname Verification Check failed.", "--tls-ca"),
        ("grpcs://h:1", "SSL_ERROR_SSL: error: WRONG_VERSION_NUMBER", "Leave out grpcs://"),
        ("127.0.0.1:1", "last error: UNKNOWN: Connection refused", "`turndock serve` starts one"),
        ("127.0.0.1:1", "Socket closed", "One that encrypts is named by grpcs://"),
    ],
)
def test_a_connection_that_fails_says_what_to_do(
    server: str, message: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = refused(TurndockError("UNAVAILABLE", message), server)
    assert ended.exit_code == 4
    assert advice in capsys.readouterr().err


def test_a_file_that_is_no_export_is_named(place: Path) -> None:
    (place / "chat.json").write_text("[")
    ended = run("sessions", "import", "chat.json")
    assert ended.exit_code == 2
    assert "chat.json: line 1: is not JSON" in ended.output
    assert "turndock sessions export SESSION -o FILE" in ended.output


def test_an_id_is_not_broken_where_others_can_give_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    run_id = "01a22f0b-7fd1-7a58-a313-7039a6e7525b"
    output.say_table(("RUN", "PROMPT"), [(run_id, "many words " * 8)])
    assert f"{run_id}  many words" in capsys.readouterr().out
    output.say_table(("SESSION", "AGENT"), [("s" * 100, "ann")])
    assert "ann" in capsys.readouterr().out
