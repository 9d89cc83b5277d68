"""Optional calls: what a backend is said not to have is absent, and says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from turndock.conformance.backend.suite import (
    CHECKPOINT_SESSION,
    INTERRUPT,
    RESUME_SESSION,
    UPDATE_SESSION,
    Fixture,
    case,
)
from turndock.conformance.claims import equal, refused
from turndock.events import result
from turndock.ports import BACKEND_OPTIONS

ABSENT = "CAPABILITY_NOT_SUPPORTED"


@case("Abilities", "B-16")
async def an_absent_call_says_that_it_is_absent(fixture: Fixture) -> None:
    """An optional call that a backend does not offer answers UNIMPLEMENTED; it never half works."""
    talk = await fixture.start()
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        INTERRUPT: lambda: fixture.interrupt("conformance-unknown"),
        CHECKPOINT_SESSION: lambda: talk.checkpointed(talk.session, "conformance-1"),
        UPDATE_SESSION: lambda: talk.updated(talk.session, result("hello")),
        RESUME_SESSION: talk.resume,
    }
    for name, call in calls.items():
        if name not in fixture.abilities:
            await refused(call(), ABSENT, f"This backend is said not to have {name}.")


@case("Abilities", "B-16")
async def the_capabilities_name_the_optional_calls(fixture: Fixture) -> None:
    """`capabilities` names the optional calls that are offered, and no other."""
    equal(
        fixture.backend.capabilities & frozenset(BACKEND_OPTIONS),
        fixture.abilities,
        "`capabilities` must name just the optional calls that are offered.",
    )
