"""Scopes: a row of another partition answers exactly like a missing one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

from turndock.conformance.claims import equal, holds, refused, unknown
from turndock.conformance.session_store.suite import (
    LONG_POLL,
    MAILBOX,
    NOW_US,
    SUITE,
    WATCH_EVENTS,
    Fixture,
    under_way,
)
from turndock.store.v1 import (
    AppendEventRequest,
    Claim,
    GetEventsRequest,
    GetSessionRequest,
    ListSessionsRequest,
    RenewClaimsRequest,
    SaveSessionRequest,
)
from turndock.types.v1 import Fence, RunStatus, Scope

RUNNING = RunStatus.RUN_STATUS_RUNNING

DISTINCT = (
    "../../x",
    "/etc/x",
    "a/../b",
    "a%2f..",
    ".",
    "..",
    "CON",
    "e\u0301",
    "\u00e9",
    "Key",
    "key",
    "KEY",
    "p",
    "p/versions/1",
    "p/",
    " p",
    "p ",
    "a'b",
    'a"; DROP TABLE events; --',
    "100%",
    "100_",
    "a\\b",
    "*",
    "ß",
    "ss",
    "x" * 128,
    "x" * 127,
    "\U0001f600",
)
"""Ids that something careless takes for each other, or for more than a name."""


async def populated(fixture: Fixture) -> None:
    """A session of red's with a running and a waiting run and two events."""
    await fixture.save(fixture.session(tags=["red"]))
    await fixture.save_run(fixture.run("run_1", status=RUNNING, prompt="red"))
    await fixture.save_run(fixture.run("run_2", queue_key=5))
    await fixture.append(fixture.event("e1"), fixture.event("e2"))


async def untouched(red: Fixture) -> None:
    """Everything of `populated` is as it was."""
    session = await red.read_session()
    equal((list(session.tags), session.last_sequence), (["red"], 2), "red's session is as before.")
    equal((await red.read_run("run_1")).prompt, "red", "red's run is as before.")
    equal(await red.run_ids(), ["run_1", "run_2"], "red's runs are as before.")
    equal([event.id for event in (await red.log()).events], ["e1", "e2"], "red's log is as before.")


@SUITE.case("P-13", "GetSession")
async def what_is_anothers_reads_like_what_is_not_there(fixture: Fixture) -> None:
    """Every read of another scope's session answers like one of an unknown session: same code, reason and text."""
    red, blue = fixture, fixture.other()
    await populated(red)
    foreign = await unknown(
        blue.read_session("ses_1"), "SESSION_NOT_FOUND", "Another scope's session is unknown."
    )
    missing = await unknown(blue.read_session("ses_x"), "SESSION_NOT_FOUND", "An unknown session is unknown.")
    same = "A foreign session's error differs from an unknown one's: it tells that the session exists."
    equal(foreign.message, missing.message.replace("ses_x", "ses_1"), same)
    equal(sorted(foreign.metadata), sorted(missing.metadata), same)
    run = await unknown(blue.read_run("run_1", "ses_1"), "RUN_NOT_FOUND", "Another scope's run is unknown.")
    no_run = await unknown(blue.read_run("run_1", "ses_x"), "RUN_NOT_FOUND", "An unknown run is unknown.")
    equal(run.message, no_run.message.replace("ses_x", "ses_1"), same)
    equal(list((await blue.list_sessions()).sessions), [], "Another scope's sessions are not listed.")
    equal(await blue.run_ids("ses_1"), [], "Another scope's runs are not listed.")
    equal(await blue.active_run("ses_1"), "", "Another scope's active run is none.")
    equal(await blue.head("ses_1"), 0, "Another scope's log is empty.")
    equal(await blue.log("ses_1"), await blue.log("ses_x"), "Another scope's log reads like an unknown one.")


@SUITE.case("P-13")
async def writing_into_anothers_session_makes_ones_own(fixture: Fixture) -> None:
    """Every write under an id another scope has is a write of one's own row and changes nothing of the other's."""
    red, blue = fixture, fixture.other()
    await populated(red)
    before = await red.read_session()
    mine = await blue.append_one(blue.event("e1", metadata_json='{"of":"blue"}'))
    equal(
        (mine.duplicate, mine.event.sequence), (False, 1), "An event id of another scope is not known here."
    )
    holds(mine.event.incarnation != before.incarnation, "The two sessions have incarnations of their own.")
    saved = await blue.save(blue.session(tags=["blue"]))
    equal(saved.last_sequence, 1, "blue's session has blue's log.")
    await blue.save_run(blue.run("run_1", prompt="blue"), expected_status=RunStatus.RUN_STATUS_UNSPECIFIED)
    await blue.flush(blue.session(tags=["blue"]), blue.run("run_3"), [blue.event("e2")])
    await untouched(red)
    equal(await red.read_session(), before, "red's session is as before, field by field.")
    equal(await blue.numbers(), [1, 2], "blue's log has its own numbers.")
    await blue.delete()
    await untouched(red)


@SUITE.case("P-13")
async def deleting_anothers_session_deletes_nothing(fixture: Fixture) -> None:
    """DeleteSession of another scope's session is OK, as of an unknown one, and deletes nothing."""
    red, blue = fixture, fixture.other()
    await populated(red)
    await blue.delete("ses_1")
    await blue.delete("ses_1", request_id="q1")
    await untouched(red)


@SUITE.case("P-13")
async def another_scopes_epochs_fence_nobody(fixture: Fixture) -> None:
    """Epochs and request ids are kept per scope."""
    red, blue = fixture, fixture.other()
    await red.save(red.session(), fence=Fence(epoch=9), request_id="q1")
    await blue.save(blue.session(tags=["blue"]), fence=Fence(epoch=1), request_id="q1")
    equal(list((await blue.read_session()).tags), ["blue"], "blue's write is not fenced by red's epoch.")


@SUITE.case("P-13", needs=(MAILBOX,))
async def anothers_mailbox_is_out_of_reach(fixture: Fixture) -> None:
    """Every mailbox call for another scope's session answers as for an unknown one and changes nothing."""
    red, blue = fixture, fixture.other()
    await populated(red)
    epoch = (await red.claim(owner="host-a")).epoch
    await unknown(blue.enqueue(blue.run("run_9")), "SESSION_NOT_FOUND", "EnqueueRun finds no session.")
    await unknown(
        blue.claim(owner="host-b", sole_host=True), "SESSION_NOT_FOUND", "ClaimAgent finds no session."
    )
    await unknown(blue.edit("run_2", prompt="x"), "RUN_NOT_FOUND", "EditRun finds no run.")
    await unknown(blue.cancel("run_2"), "RUN_NOT_FOUND", "CancelRun finds no run.")
    equal(await blue.release(epoch, force=True), True, "A claim on nothing is given up.")
    claim = Claim(scope=blue.scope, session_id="ses_1", epoch=epoch)
    request = RenewClaimsRequest(owner="host-a", lease_ms=1, claims=[claim])
    lost = (await blue.mailbox.renew_claims(request)).lost
    equal(len(lost), 1, "A claim named in another scope is none.")
    equal(await blue.orphans(), [], "Another scope has no work.")
    await refused(red.claim(owner="host-b"), "CLAIM_CONFLICT", "red's owner is still the owner.")
    await untouched(red)


@SUITE.case("P-13", needs=(LONG_POLL,))
async def anothers_events_end_no_wait(fixture: Fixture) -> None:
    """A reader that waits is not woken by, and does not get, events of another scope's session of that name."""
    red, blue = fixture, fixture.other()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(blue.numbers("ses_1", wait_ms=400))
        await under_way(blue)
        await populated(red)
    equal(waiting.result(), [], "What came is another scope's.")


@SUITE.case("P-13", needs=(WATCH_EVENTS,))
async def anothers_events_are_not_streamed(fixture: Fixture) -> None:
    """A stream carries the events of its own scope's session only."""
    red, blue = fixture, fixture.other()
    await populated(red)
    await blue.append(blue.event("blue-1"))
    stream = blue.watch("ses_1")
    first = await anext(stream)
    equal([event.id for event in first.events], ["blue-1"], "blue's event is the first and only one.")


@SUITE.case("P-13", "Scope")
async def the_unscoped_partition_is_one_of_its_own(fixture: Fixture) -> None:
    """An absent scope is a partition like any other: it sees nothing of the others and they nothing of it."""
    name = uuid.uuid4().hex
    store = fixture.store
    await fixture.save(fixture.session(name, agent_id=name, tags=["scoped"]))
    await refused(
        store.get_session(GetSessionRequest(session_id=name)),
        "SESSION_NOT_FOUND",
        "Unscoped sees no tenant's.",
    )
    listed = await store.list_sessions(ListSessionsRequest(agent_id=name))
    equal(len(listed.sessions), 0, "Unscoped is not all scopes.")
    saved = (
        await store.save_session(SaveSessionRequest(session=fixture.session(name, agent_id=name)))
    ).session
    holds(not saved.HasField("scope"), "A session of the unscoped partition has no scope.")
    await store.append_event(AppendEventRequest(event=fixture.event(name, session_id=name)))
    equal(await fixture.head(name), 0, "A tenant sees nothing of the unscoped partition.")
    equal(list((await fixture.read_session(name)).tags), ["scoped"], "The tenant's session is as before.")
    found = await store.list_sessions(ListSessionsRequest(agent_id=name))
    equal([session.id for session in found.sessions], [name], "Unscoped lists its own.")


@SUITE.case("Scope")
async def a_scope_without_a_tenant_is_refused(fixture: Fixture) -> None:
    """A scope whose tenant is empty is INVALID_ARGUMENT naming scope.tenant, on every call."""
    nobody = Fixture(fixture.store, fixture.abilities, Scope(tenant=""))
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "SaveSession": lambda: nobody.save(nobody.session()),
        "GetSession": nobody.read_session,
        "ListSessions": nobody.list_sessions,
        "DeleteSession": nobody.delete,
        "SaveRun": lambda: nobody.save_run(nobody.run()),
        "GetRun": nobody.read_run,
        "ListRuns": nobody.list_runs,
        "GetActiveRun": nobody.active_run,
        "AppendEvent": lambda: nobody.store.append_event(
            AppendEventRequest(scope=nobody.scope, event=nobody.event())
        ),
        "AppendEventWithSequence": lambda: nobody.append_one(nobody.event()),
        "AppendEvents": lambda: nobody.append(nobody.event()),
        "GetEvents": nobody.log,
        "GetLatestSequence": nobody.head,
        "Flush": lambda: nobody.flush(nobody.session(), nobody.run(), []),
    }
    if MAILBOX in fixture.abilities:
        calls |= {
            "EnqueueRun": lambda: nobody.enqueue(nobody.run()),
            "ClaimAgent": nobody.claim,
            "ReleaseIfEmpty": lambda: nobody.release(1),
            "EditRun": lambda: nobody.edit("run_1"),
            "CancelRun": lambda: nobody.cancel("run_1"),
        }
    if WATCH_EVENTS in fixture.abilities:
        calls["WatchEvents"] = lambda: anext(nobody.watch())
    for name, call in calls.items():
        sentence = f"{name} with an empty tenant is refused."
        await refused(call(), "VALIDATION_ERROR", sentence, field="scope.tenant")
    long = Fixture(fixture.store, fixture.abilities, Scope(tenant="x" * 257))
    await refused(
        long.read_session(), "VALIDATION_ERROR", "A tenant has 256 bytes at most.", field="scope.tenant"
    )


@SUITE.case("Scope")
async def opaque_is_no_part_of_any_key(fixture: Fixture) -> None:
    """Scopes that differ in `opaque` only are the same partition, and `opaque` is not stored."""
    tenant = fixture.scope.tenant
    one, two = fixture.other(tenant=tenant, opaque=b"one"), fixture.other(tenant=tenant, opaque=b"\x00\xff")
    await one.save(one.session(), request_id="q1")
    await two.save(two.session(), request_id="q1")
    await one.append(one.event("e1"))
    again = await two.append_one(two.event("e1"))
    equal(again.duplicate, True, "It is the same partition.")
    session = await fixture.read_session()
    equal(session.scope, Scope(tenant=tenant), "What a caller passed on in `opaque` is not stored.")
    cursor = await one.list_sessions()
    equal([row.id for row in cursor.sessions], ["ses_1"], "It is the same list.")


@SUITE.case("PF-B35")
async def ids_are_names_and_nothing_else(fixture: Fixture) -> None:
    """Ids that look like paths, patterns or each other are each an own session, run, event and tenant."""
    for index, name in enumerate(DISTINCT):
        await fixture.save(fixture.session(name, tags=[str(index)]))
        await fixture.save_run(fixture.run(name, name, prompt=str(index)))
        result = await fixture.append_one(fixture.event(name, name, time_us=NOW_US + index))
        equal(
            (result.event.sequence, result.duplicate), (1, False), f"{name!r} is another session's, and new."
        )
    await fixture.delete(DISTINCT[0])
    for index, name in enumerate(DISTINCT[1:], 1):
        equal(
            list((await fixture.read_session(name)).tags), [str(index)], f"{name!r} is a session of its own."
        )
        equal((await fixture.read_run(name, name)).prompt, str(index), f"{name!r} is a run of its own.")
        times = [(event.id, event.time_us) for event in (await fixture.log(name)).events]
        equal(times, [(name, NOW_US + index)], f"{name!r} has a log of its own.")
    await refused(fixture.read_session(DISTINCT[0]), "SESSION_NOT_FOUND", "Only the deleted one is gone.")


@SUITE.case("PF-B35", "Scope")
async def tenants_are_names_and_nothing_else(fixture: Fixture) -> None:
    """Tenants that look like paths, patterns or each other are each a partition of their own."""
    prefix = fixture.scope.tenant
    tenants = [fixture.other(tenant=f"{prefix}{name}") for name in DISTINCT]
    for index, tenant in enumerate(tenants):
        await tenant.save(tenant.session(tags=[str(index)]))
        await tenant.append(tenant.event("e1"))
    for index, tenant in enumerate(tenants):
        equal(
            list((await tenant.read_session()).tags),
            [str(index)],
            f"{DISTINCT[index]!r} is a tenant of its own.",
        )
        equal(await tenant.numbers(), [1], f"{DISTINCT[index]!r} has events of its own.")


@SUITE.case("PF-B35")
async def ids_that_are_no_names_are_refused(fixture: Fixture) -> None:
    """Empty, overlong and control-character ids are INVALID_ARGUMENT naming the field, for reads and writes alike."""
    for name in ("", "a\x00b", "a\nb", "x" * 129, "é" * 65):
        shown = repr(name[:10])
        call = fixture.save(fixture.session(name))
        await refused(call, "VALIDATION_ERROR", f"SaveSession of {shown} is refused.", field="session.id")
        log = fixture.store.get_events(GetEventsRequest(scope=fixture.scope, session_id=name))
        await refused(log, "VALIDATION_ERROR", f"GetEvents of {shown} is refused.", field="session_id")
        event = fixture.event(session_id=name)
        await refused(
            fixture.append(event), "VALIDATION_ERROR", f"Appending to {shown}.", field="[0].session_id"
        )
