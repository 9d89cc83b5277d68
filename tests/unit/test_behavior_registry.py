"""Behaviors in the server's own process: those that installed distributions register."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from turndock.errors import TurndockError
from turndock.examples.patterns.retry import Retry
from turndock_server.behaviors import registry
from turndock_server.config import Settings
from turndock_server.doctor import Level, docking


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with a behavior, and one that is broken."""
    info = tmp_path / "patient-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: patient\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[turndock.behaviors]\n"
        "patient = turndock.examples.patterns.retry:Retry\n"
        "broken = turndock.examples.patterns.retry:Nothing\n"
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


@pytest.mark.usefixtures("installed")
def test_a_distribution_registers_a_behavior_by_name() -> None:
    assert {"patient", "broken"} <= set(registry.registry())
    behavior = registry.create("patient")
    assert isinstance(behavior, Retry)
    assert behavior.capabilities == {"handle_error", "pre_turn"}


def test_a_behavior_nobody_registers_is_not_found() -> None:
    with pytest.raises(TurndockError, match="'patient' not found"):
        registry.create("patient")


@pytest.mark.usefixtures("installed")
def test_the_doctor_loads_what_is_configured() -> None:
    settings = Settings.model_validate({"behaviors": {"p": {"kind": "patient"}, "b": {"kind": "broken"}}})
    found = {finding.subject: finding for finding in docking.behaviors(settings)}
    assert found["behaviors.p.kind"].level is Level.OK
    assert "cannot be loaded" in found["behaviors.b.kind"].what
