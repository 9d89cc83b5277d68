"""The state: all that a behavior knows of an agent, as JSON text."""

from __future__ import annotations

from typing import cast

from turndock import events
from turndock.conformance.behavior.suite import Fixture, case
from turndock.conformance.claims import copied, equal
from turndock.types.v1 import Event, EventType, Run

UNKNOWN_NUMBER = 4_095
UNKNOWN_FIELD = bytes([0xFA, 0xFF, 0x01, 0x02, 0x68, 0x69])
"""A field of a number that no message has, as a newer host may send it."""


@case("State")
async def the_state_in_the_request_counts(fixture: Fixture) -> None:
    """Two agents that take turns alternately go the way each goes by itself: nothing but the request is remembered."""
    one, other = await fixture.start("one"), await fixture.start("other")
    for number in (1, 2):
        for agent in (one, other):
            await agent.respond(number)
    await one.same_by_itself()
    await other.same_by_itself()


@case("State")
async def an_earlier_state_is_gone_back_to(fixture: Fixture) -> None:
    """After a crash a host may come with an older state: the answer is the one that state had."""
    agent = await fixture.start()
    request = agent.response_request(1)
    first = await fixture.answered("HandleResponse", fixture.behavior.handle_response(copied(request)))
    await agent.respond(1)
    await agent.respond(2)
    again = await fixture.answered("HandleResponse", fixture.behavior.handle_response(copied(request)))
    equal(again, first, "A state that was given before must be answered as before, whatever came meanwhile.")


@case("HandsOff")
async def requests_are_left_alone(fixture: Fixture) -> None:
    """A behavior changes no message that it is given."""
    agent = await fixture.start()
    init, response = agent.init_request(), agent.response_request(1)
    before = copied(init), copied(response)
    await fixture.answered("InitAgent", fixture.behavior.init_agent(init))
    await fixture.answered("HandleResponse", fixture.behavior.handle_response(response))
    equal((init, response), before, "The requests must be unchanged after the calls.")


@case("PF-B33")
async def what_a_newer_host_sends_is_taken(fixture: Fixture) -> None:
    """Unknown fields, statuses and origins in a request are no reason to fail."""
    agent = await fixture.start()
    request = agent.response_request(1)
    request.run.MergeFrom(Run.FromString(UNKNOWN_FIELD))
    request.run.status = UNKNOWN_NUMBER  # type: ignore[assignment] # proto3 enums are open
    request.run.origin = UNKNOWN_NUMBER  # type: ignore[assignment] # proto3 enums are open
    await fixture.answered("HandleResponse", fixture.behavior.handle_response(request))


@case("HandleStreamEvent", "PF-B33", needs=["handle_stream_event"])
async def events_of_every_type_are_taken(fixture: Fixture) -> None:
    """Events of each type, of none, and of types this release does not know, are no reason to fail."""
    agent = await fixture.start()
    numbers = [*EventType.values(), cast(EventType.ValueType, UNKNOWN_NUMBER)]
    shown = [Event(id=str(number), type=number) for number in numbers]
    shown.append(Event.FromString(shown[-1].SerializeToString() + UNKNOWN_FIELD))
    await agent.see(shown)


@case("HandleStreamEvent", "B-01", needs=["handle_stream_event"])
async def it_does_not_matter_how_events_are_batched(fixture: Fixture) -> None:
    """Events shown one by one leave the state that they leave when they are shown together."""
    shown = [
        events.text("hel"),
        events.text("lo"),
        events.tool_use("call-1", "search"),
        events.tool_result("call-1"),
        events.usage(10, 2),
    ]
    for number, event in enumerate(shown):
        event.id = f"event-{number}"
    together, apart = await fixture.start("one"), await fixture.start("one")
    await together.see(shown)
    for event in shown:
        await apart.see([event])
    equal(apart.state_json, together.state_json, "The state must not depend on how many events come at once.")
