"""`turndock serve` and `turndock doctor` on PostgreSQL, as processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support import commands, postgres
from support.servers import ServerProcess, calls

FREE = ("--listen", "127.0.0.1:0")
SECRET = "TURNDOCK_TEST_PASSWORD"


@pytest.fixture
def url() -> str:
    return postgres.server().new_database()


def guarded(url: str) -> str:
    """The same database, for the user that needs a password."""
    return url.replace(f"//{postgres.USER}@", f"//{postgres.GUARDED}@")


def configure(folder: Path, url: str, **store: str) -> None:
    lines = [f'kind = "postgresql"\nurl = "{url}"', *(f"{key} = {value}" for key, value in store.items())]
    (folder / "turndock.toml").write_text("\n".join(["[store]", *lines, '[backends.echo]\nkind = "echo"\n']))


async def findings(folder: Path, *options: str, **variables: str) -> dict[str, dict[str, Any]]:
    """What doctor says about the database, by level: the last of each."""
    said = await commands.run("doctor", *FREE, "--json", *options, cwd=folder, variables=variables)
    assert "Traceback" not in said.err
    return {one["level"]: one for one in json.loads(said.out) if one["subject"].startswith("store.")}


async def test_what_a_server_on_postgresql_acknowledged_survives_its_death(tmp_path: Path, url: str) -> None:
    store = f'[store]\nkind = "postgresql"\nurl = "{url}"\n[backends.echo]\nkind = "echo"\n'
    server = ServerProcess(tmp_path, store)
    try:
        await server.start()
        async with calls(server) as api:
            session_id = await api.start("a1", "echo")
            before = await api.stored(session_id)
        await server.restart()  # at once, although nobody has told the database that the first one is gone
        async with calls(server) as api:
            assert (await api.status("a1")).session_id == session_id
            assert (await api.stored(session_id))[: len(before)] == before
    finally:
        await server.close()
    assert not server.database.exists()


async def test_a_password_is_given_by_reference_and_shown_nowhere(tmp_path: Path, url: str) -> None:
    configure(tmp_path, guarded(url), password=f'{{env = "{SECRET}"}}')
    right, wrong = {SECRET: postgres.PASSWORD}, {SECRET: "not this one"}
    async with commands.serving(tmp_path, *FREE, variables=right) as server:
        ended = await server.stop()
    assert ended.code == 0
    assert postgres.PASSWORD not in ended.err
    refused = await commands.run("serve", *FREE, cwd=tmp_path, variables=wrong)
    assert refused.code == 1
    assert "cannot start: the password is wrong" in refused.err
    said = await findings(tmp_path, **wrong)
    assert "the password is wrong" in said["error"]["what"]
    assert "store.password" in said["error"]["mend"]
    assert "error" not in await findings(tmp_path, **right)
    (tmp_path / "secret").write_text(f"{postgres.PASSWORD}\n")
    configure(tmp_path, guarded(url), password='{file = "secret"}')
    assert "error" not in await findings(tmp_path)


async def test_a_password_in_the_url_is_refused(tmp_path: Path) -> None:
    for url in ("postgresql://me:secret@db/x", "postgresql://me@db/x?password=secret"):
        configure(tmp_path, url)
        refused = await commands.run("serve", *FREE, cwd=tmp_path)
        assert refused.code == 2
        assert "store.url: holds a password" in refused.err
        assert "secret@" not in refused.err


async def test_a_second_server_on_a_database_fails(tmp_path: Path, url: str) -> None:
    configure(tmp_path, url, busy_timeout_ms="100")
    async with commands.serving(tmp_path, *FREE) as first:
        second = await commands.run("serve", *FREE, "--data", "other", cwd=tmp_path)
        assert second.code == 1
        assert "another server has this database" in second.err
        said = await findings(tmp_path)
        assert "another server has this database; it connects from" in said["error"]["what"]
        assert (await first.stop()).code == 0
    said = await findings(tmp_path)
    assert said["ok"]["what"] == "its schema is this release's"


async def test_a_server_that_is_cut_off_and_replaced_ends(tmp_path: Path, url: str) -> None:
    database = postgres.server()
    async with commands.serving(tmp_path, *FREE, "--store", url) as server:
        held = "FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
        key = database.sql(f"SELECT (classid::bigint << 32) | objid::bigint {held}", url=url)
        # What takes its place waits for the lock, so that it is there before the server can come back.
        thief = await asyncio.create_subprocess_exec(
            *database.command(
                f"SELECT pg_terminate_backend(pid) {held}; SELECT pg_advisory_lock({key}); SELECT pg_sleep(60)",
                url=url,
            )
        )
        ended = await commands.finish(server.process)
        thief.kill()
        await thief.wait()
    assert ended.code == 0
    assert "another server has taken this database over" in ended.err
