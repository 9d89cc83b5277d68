"""The ten patterns, told on a host in this process, with their behaviors in it or behind gRPC."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.docking import Mode
from support.harness import Harness, harnessed
from turndock.client import Client
from turndock.examples.patterns import workspace as workspaces
from turndock.examples.patterns.checkpointer import Checkpointer, checkpointer
from turndock.examples.patterns.debate import Debater, debate
from turndock.examples.patterns.pipeline import Stage, pipeline
from turndock.examples.patterns.pool import pool
from turndock.examples.patterns.research import Research, research
from turndock.examples.patterns.retry import Retry, retry
from turndock.examples.patterns.supervisor import Supervisor, supervisor
from turndock.examples.patterns.switchboard import switchboard
from turndock.examples.patterns.watcher import Watcher, watcher
from turndock.ports import Behavior
from turndock_server.backends.echo import EchoBackend
from turndock_server.backends.scripted import ScriptedBackend

BEHAVIORS: dict[str, type[Behavior]] = {
    "checkpointer": Checkpointer,
    "debate": Debater,
    "pipeline": Stage,
    "research": Research,
    "retry": Retry,
    "supervisor": Supervisor,
    "watcher": Watcher,
}


@pytest.fixture(params=["in_process", "own_streams"])
async def host(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Harness]:
    mode: Mode = request.param
    async with harnessed("sqlite", mode, tmp_path) as harness:
        await harness.dock_backend("echo", EchoBackend())
        await harness.dock_backend("scripted", ScriptedBackend())
        for name, behavior in BEHAVIORS.items():
            await harness.dock_behavior(f"plugin:{name}", behavior())
        yield harness


@pytest.fixture
async def client(host: Harness) -> AsyncGenerator[Client]:
    async with Client(host.served.address) as client:
        yield client


async def test_switchboard(client: Client) -> None:
    assert await switchboard(client) == {
        "ann": ["Good morning, ann"],
        "bob": ["Good morning, bob", "One more thing"],
        "cy": ["Good morning, cy"],
    }


async def test_research(client: Client) -> None:
    assert await research(client) == (
        "Write a report from: Tides, in short. What causes tides? Why are there two a day? Who knew it first?"
    )


async def test_debate(client: Client) -> None:
    assert await debate(client) == [
        "Cats are clean.",
        "Dogs are loyal.",
        "Cats need no walk.",
        "A walk is good for you.",
        "Cats purr.",
        "Dogs sing.",
    ]


async def test_pipeline(client: Client) -> None:
    assert await pipeline(client) == {
        "out": {
            "letter": "Check: Shorten: Translate: Lieber Leser",
            "note": "Check: Shorten: Translate: Bitte klingeln",
        },
        "turns": 6,
    }


async def test_supervisor(client: Client) -> None:
    assert await supervisor(client) == {
        "whole": "A house: walls, roof and garden.",
        "tries": {"walls": 1, "roof": 2, "garden": 1},
        "results": {"walls": "walls built", "roof": "roof built", "garden": "garden built"},
    }


async def test_pool(client: Client) -> None:
    assert await pool(client) == {"answers": ["done"] * 8, "done": 8}


async def test_watcher(client: Client) -> None:
    assert await watcher(client) == {"seen": 7, "alerts": ["It is 31 degrees.", "It is 35 degrees."]}


async def test_checkpointer(client: Client) -> None:
    assert await checkpointer(client) == {"approved": "Dear customer (shorter) (friendlier)", "stops": 3}


async def test_retry(client: Client) -> None:
    assert await retry(client, pause_s=0.01) == {
        "answer": "at last",
        "tries": 3,
        "refused": "no_credit",
        "halted": True,
    }


def name_of(**files: str) -> str:
    """What a folder with these files is recorded as."""
    digest = hashlib.sha256()
    for path, text in sorted(files.items()):
        digest.update(f"{path}\0{len(text)}\0{text}".encode())
    return digest.hexdigest()


async def test_workspace(host: Harness, client: Client, tmp_path: Path) -> None:
    place = workspaces.Workspaces(tmp_path / "places")
    await host.dock_backend("workspace", workspaces.Clerk(place))
    await host.dock_behavior("plugin:workspace", workspaces.Caretaker(place))
    done = await workspaces.workspace(client)
    assert done["failures"] == ["pen_broken", "outside"]
    assert done["went_back"] == 1
    assert done["diffs"] == [
        "--- a/list.txt\n+++ b/list.txt\n@@ -0,0 +1 @@\n+milk",
        "--- a/list.txt\n+++ b/list.txt\n@@ -1 +1,2 @@\n milk\n+bread",
    ]
    empty, milk = name_of(), name_of(**{"list.txt": "milk\n"})
    both = name_of(**{"list.txt": "milk\nbread\n"})
    assert done["records"] == [[empty, ""], [milk, empty], [milk, ""], [milk, ""], [both, milk]]
    assert list((tmp_path / "places").iterdir()) == []
