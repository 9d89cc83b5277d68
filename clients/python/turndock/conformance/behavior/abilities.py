"""Optional callbacks: what a behavior is said not to have is absent, and says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from turndock import events
from turndock.behavior.v1 import Decision
from turndock.conformance.behavior.suite import Fixture, case
from turndock.conformance.claims import equal, refused
from turndock.ports import BEHAVIOR_OPTIONS

ABSENT = "CAPABILITY_NOT_SUPPORTED"


@case("Abilities", "B-16")
async def an_absent_callback_says_that_it_is_absent(fixture: Fixture) -> None:
    """An optional callback that a behavior does not offer answers UNIMPLEMENTED; it never half works."""
    agent = await fixture.start()
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "handle_error": agent.fail,
        "handle_event": lambda: agent.hear(fixture.story.notifications[0]),
        "handle_stream_event": lambda: agent.see([events.text("a")]),
        "pre_run": agent.pre_run,
        "pre_turn": agent.pre_turn,
        "pre_tool": agent.pre_tool,
        "post_turn": lambda: agent.post_turn(Decision()),
        "post_run": agent.post_run,
        "terminate_agent": agent.terminate,
    }
    for name, call in calls.items():
        if name not in fixture.abilities:
            await refused(call(), ABSENT, f"This behavior is said not to have {name}.")


@case("Abilities", "B-16")
async def the_capabilities_name_the_optional_callbacks(fixture: Fixture) -> None:
    """`capabilities` names the optional callbacks that are offered, and no other."""
    equal(
        fixture.behavior.capabilities & frozenset(BEHAVIOR_OPTIONS),
        fixture.abilities,
        "`capabilities` must name just the optional callbacks that are offered.",
    )
