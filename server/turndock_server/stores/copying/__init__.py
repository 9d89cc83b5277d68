"""Copying a whole store into another one, session by session, each compared by digest in the end.

A copy that was broken off is begun again by the same call: what is there already and is the same is left alone, and a
target that has other data in a session's place is refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from turndock.errors import TurndockError
from turndock.types.v1 import Session
from turndock_server.stores.copying import messages, tables
from turndock_server.stores.copying.calls import Calls
from turndock_server.stores.copying.rows import Name, Rows

LEFT_BY_READING = (
    "retry tokens",
    "how many owners a session has had (epochs)",
    "what is remembered of deleted sessions",
    "logs and runs of sessions that were never saved",
    "agents' snapshots",
)
"""What a store does not show to those who call it."""
LEFT_BY_WRITING = ("incarnations (cursors of watchers begin anew)", "the times at which events were stored")
"""What a store that is written by its calls stamps by itself."""


@dataclass(slots=True)
class Report:
    """What a copy did."""

    copied: int = 0
    same: int = 0
    """Sessions that were there already."""
    digests: dict[Name, str] = field(default_factory=dict[Name, str])
    """The digest of each session, as both stores have it now."""


Progress = Callable[[Name, bool], None]
"""Called for each session that is settled: its name, and whether it was copied now."""


async def copy_database(source: Rows, target: Rows, tenant: str | None, on_session: Progress) -> Report:
    """Copy every row of a scope, or of all scopes for None, from one database to another.

    Raises ALREADY_EXISTS when the target has other data, and STORAGE_ERROR when what was written reads
    differently; what is not copied then is as it was.
    """
    tables.check_all_are_known()
    report = Report()
    tenants = [each for each in await source.tenants() if tenant in {None, each}]
    missing = await _compare(source, target, tenants, report, on_session)
    for each in tenants:
        await _copy_scope(source, target, each)
    for name, digest in missing:
        async with target.transaction():
            scope = key = 0
            async for part, rows in source.read(name):
                if part is None:
                    scope, key = await target.make_session(name.tenant, rows[0])
                else:
                    await target.write(part, key, scope, rows)
            if await target.digest(name) != digest:
                raise _differs(name)
        report.copied += 1
        report.digests[name] = digest
        on_session(name, True)
    return report


async def _compare(
    source: Rows, target: Rows, tenants: list[str], report: Report, on_session: Progress
) -> list[tuple[Name, str]]:
    """The sessions that the target does not have, with their digests. Raises ALREADY_EXISTS for those that differ."""
    missing: list[tuple[Name, str]] = []
    others: list[Name] = []
    for tenant in tenants:
        async for part, rows in source.read_scope(tenant):
            for row in rows:
                await target.holds(part, tenant, row)
        async for name in source.names(tenant):
            digest = await source.digest(name)
            there = await target.digest(name)
            if digest is None:
                continue
            if there is None:
                missing.append((name, digest))
            elif there == digest:
                report.same += 1
                report.digests[name] = digest
                on_session(name, False)
            else:
                others.append(name)
    if others:
        raise _refused(others)
    return missing


async def _copy_scope(source: Rows, target: Rows, tenant: str) -> None:
    async with target.transaction():
        scope = await target.make_scope(tenant)
        async for part, rows in source.read_scope(tenant):
            new = [row for row in rows if not await target.holds(part, tenant, row)]
            if new:
                await target.write(part, scope, scope, new)


async def copy_into_database(
    source: Calls, target: Rows, stored: Calls, tenant: str | None, on_session: Progress
) -> Report:
    """Copy what a store shows by its calls into a database. `stored` is the same database by its calls.

    Raises as `copy_database`.
    """
    report = Report()
    missing: list[Name] = []
    others: list[Name] = []
    async for session in source.sessions(tenant):
        name = Name(session.scope.tenant, session.id)
        there = await stored.summary(name, with_stamps=True)
        if there is None:
            missing.append(name)
            continue
        here = await source.summary(name, with_stamps=True)
        if here is None or here.digest != there.digest:
            others.append(name)
            continue
        report.same += 1
        report.digests[name] = here.digest
        on_session(name, False)
    if others:
        raise _refused(others)
    for name in missing:
        found = await source.get(name)
        if found is None:
            continue  # it was deleted meanwhile
        await messages.write(source, found, target)
        await _verify(source, stored, name, report, with_stamps=True)
        on_session(name, True)
    return report


async def copy_by_calls(source: Calls, target: Calls, tenant: str | None, on_session: Progress) -> Report:
    """Copy what a store shows by its calls by another one's calls. Raises as `copy_database`."""
    report = Report()
    missing: list[Session] = []
    others: list[Name] = []
    async for session in source.sessions(tenant):
        name = Name(session.scope.tenant, session.id)
        if await target.get(name) is None:  # the session itself is what a copy writes last
            missing.append(session)
            continue
        there = await target.summary(name, with_stamps=False)
        here = await source.summary(name, with_stamps=False)
        if there is None or here is None or here.digest != there.digest:
            others.append(name)
            continue
        report.same += 1
        report.digests[name] = here.digest
        on_session(name, False)
    if others:
        raise _refused(others)
    for session in missing:
        name = Name(session.scope.tenant, session.id)
        await target.write(session, source)
        await _verify(source, target, name, report, with_stamps=False)
        on_session(name, True)
    return report


async def _verify(source: Calls, target: Calls, name: Name, report: Report, *, with_stamps: bool) -> None:
    here = await source.summary(name, with_stamps=with_stamps)
    there = await target.summary(name, with_stamps=with_stamps)
    if here is None or there is None or here.digest != there.digest:
        raise _differs(name)
    report.copied += 1
    report.digests[name] = there.digest


def _differs(name: Name) -> TurndockError:
    return TurndockError(
        "STORAGE_ERROR",
        f"session {name} reads differently in the two stores after it was copied: it was written to meanwhile,"
        " or one of the stores does not keep what it is given",
    )


def _refused(others: list[Name]) -> TurndockError:
    named = ", ".join(str(name) for name in others[:5]) + (", …" if len(others) > 5 else "")
    return TurndockError(
        "ALREADY_EXISTS",
        f"the target has other data for {len(others)} of the sessions: {named}; nothing was copied",
    )
