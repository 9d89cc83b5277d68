"""What `turndock doctor` finds when it starts the plug-ins of a server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from support.programs import gone, python
from turndock_server.config import PluginSettings, Settings
from turndock_server.doctor import Finding, Level, examine, trying

ECHO = [sys.executable, "-m", "turndock_server.backends.plugin", "echo"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, for sockets too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def tried(argv: list[str], **values: Any) -> list[Finding]:
    """What is found about a plug-in with that command."""
    plugin = PluginSettings(endpoint="exec:" + " ".join(argv), **values.pop("plugin", {}))
    return list(trying.plugins(Settings(plugins={"p": plugin}, **values)))


def test_a_plug_in_that_comes_up_is_ready_and_leaves_nothing(place: Path) -> None:
    (finding,) = tried(ECHO, backends={"b": {"kind": "plugin", "plugin": "p"}})
    assert finding.level is Level.OK
    assert finding.what.startswith("echo ")
    assert finding.what.endswith(" is ready")
    assert list(place.iterdir()) == []


def test_a_plug_in_must_offer_what_it_is_used_for() -> None:
    findings = tried(ECHO, store={"kind": "plugin:p"})
    assert [(finding.subject, finding.level) for finding in findings] == [
        ("plugins.p", Level.OK),
        ("store.kind", Level.ERROR),
    ]


@pytest.mark.parametrize("values", [{}, {"plugin": {"required": True}}])
def test_a_program_that_ends_is_quoted(place: Path, values: dict[str, Any]) -> None:
    argv = python(place, "import sys; sys.exit('no such model: tiny')")
    (finding,) = tried(argv, **values)
    assert finding.level is (Level.ERROR if values else Level.WARNING)
    assert finding.what == "exited with code 1: no such model: tiny"
    assert finding.mend.endswith(" ".join(argv))


def test_a_program_that_is_no_plug_in_is_ended_with_its_group(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"""
        import os, signal, subprocess, sys
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"])
        open({str(place / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
        signal.pause()
    """
    monkeypatch.setattr(trying, "TRY_S", 1.0)
    (finding,) = tried(python(place, source))
    assert finding.what.startswith("was started, and did not answer at TURNDOCK_PLUGIN_ENDPOINT within 1 s: ")
    assert "turndock.plugin.v1.Plugin" in finding.mend
    for pid in (place / "pids").read_text().split():
        asyncio.run(gone(int(pid)))


def test_what_other_checks_say_is_not_said_twice() -> None:
    assert tried(["no-such-program"]) == []
    assert tried(ECHO, plugin={"env": {"KEY": {"env": "NOT_SET"}}}) == []


def test_nothing_is_started_when_that_is_not_wanted(place: Path) -> None:
    started = place / "started"
    argv = python(place, f"open({str(started)!r}, 'w').close()")
    overrides = {
        "server": {"listen": "127.0.0.1:0"},
        "plugins": {"p": {"endpoint": "exec:" + " ".join(argv)}},
    }
    assert "plugins.p" not in {finding.subject for finding in examine(overrides=overrides, start=False)}
    assert not started.exists()
    assert "plugins.p" in {finding.subject for finding in examine(overrides=overrides)}
    assert started.exists()
