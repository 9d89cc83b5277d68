"""Optional abilities: what a store is said not to have is absent, and says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from turndock.conformance.claims import equal, refused
from turndock.conformance.session_store.suite import LONG_POLL, MAILBOX, SUITE, WATCH_EVENTS, Fixture
from turndock.ports import EventWatcher, Mailbox
from turndock.store.v1 import ListOrphansRequest, RenewClaimsRequest

ABSENT = "CAPABILITY_NOT_SUPPORTED"


@SUITE.case("Abilities")
async def an_absent_ability_says_that_it_is_absent(fixture: Fixture) -> None:
    """A store without the mailbox or without streams answers UNIMPLEMENTED there; it never half works."""
    if MAILBOX not in fixture.abilities and isinstance(fixture.store, Mailbox):
        mailbox = fixture.store
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "EnqueueRun": lambda: fixture.enqueue(fixture.run()),
            "ClaimAgent": fixture.claim,
            "RenewClaims": lambda: mailbox.renew_claims(RenewClaimsRequest(owner="host-a", lease_ms=1)),
            "ReleaseIfEmpty": lambda: fixture.release(1),
            "EditRun": lambda: fixture.edit("run_1"),
            "CancelRun": lambda: fixture.cancel("run_1"),
            "ListOrphans": lambda: mailbox.list_orphans(ListOrphansRequest(owner="host-a")),
        }
        for name, call in calls.items():
            await refused(
                call(), ABSENT, f"{name} belongs to the mailbox, which this store is said not to have."
            )
    if WATCH_EVENTS not in fixture.abilities and isinstance(fixture.store, EventWatcher):
        await refused(anext(fixture.watch()), ABSENT, "WatchEvents is what this store is said not to have.")


@SUITE.case("Abilities", "S-21")
async def a_read_that_would_wait_is_answered_by_every_store(fixture: Fixture) -> None:
    """A store without long-poll answers a read with wait_ms at once, OK and empty; one with it when time is up."""
    wait_ms = 50 if LONG_POLL in fixture.abilities else 60_000
    equal(await fixture.numbers(wait_ms=wait_ms), [], "No event is there, and none came.")
