"""Retry tokens: `request_id` on PersistState and SetInterrupted."""

from __future__ import annotations

from turndock.conformance.agent_persistence.suite import ON_ERROR, SUITE, Fixture
from turndock.conformance.claims import equal, refused

ANOTHER = "The same request_id with another request is refused."


@SUITE.case("PF-B07", "PersistState")
async def a_repeated_save_does_not_undo_a_later_one(fixture: Fixture) -> None:
    """PersistState with a known request_id answers as before and changes nothing, whatever was saved since."""
    await fixture.save('{"n":1}', request_id="q1")
    await fixture.save('{"n":1}', request_id="q1")
    await fixture.save('{"n":2}')
    await fixture.save('{"n":1}', request_id="q1")
    equal(await fixture.state(), '{"n":2}', "The retry does not bring the old snapshot back.")


@SUITE.case("PF-B07", "PersistState")
async def a_request_id_belongs_to_one_save(fixture: Fixture) -> None:
    """PersistState with a known request_id and another snapshot, lifecycle or agent is refused and stores nothing."""
    await fixture.save('{"n":1}', request_id="q1")
    await refused(fixture.save('{"n":2}', request_id="q1"), "IDEMPOTENCY_CONFLICT", ANOTHER)
    await refused(
        fixture.save('{"n":1}', request_id="q1", lifecycle=ON_ERROR), "IDEMPOTENCY_CONFLICT", ANOTHER
    )
    await refused(fixture.save('{"n":1}', "other", request_id="q1"), "IDEMPOTENCY_CONFLICT", ANOTHER)
    equal(await fixture.state(), '{"n":1}', "The refused requests store nothing.")


@SUITE.case("PF-B07", "PersistState")
async def a_refused_save_does_not_use_up_its_request_id(fixture: Fixture) -> None:
    """A PersistState that was refused may be sent again, mended, with its request_id."""
    await refused(fixture.save("{", request_id="q1"), "VALIDATION_ERROR", "That is no JSON.")
    await fixture.save('{"n":1}', request_id="q1")
    equal(await fixture.state(), '{"n":1}', "The mended request is stored.")


@SUITE.case("PF-B07", "P-13")
async def request_ids_belong_to_their_conversation(fixture: Fixture) -> None:
    """The same request_id for another conversation, or in another partition, is another one."""
    blue = fixture.other()
    await fixture.save('{"n":1}', request_id="q1")
    await fixture.save('{"n":2}', conversation_id="other", request_id="q1")
    await blue.save('{"n":3}', request_id="q1")
    states = (await fixture.state(), await fixture.state(conversation="other"), await blue.state())
    equal(states, ('{"n":1}', '{"n":2}', '{"n":3}'), "Each request was carried out.")


@SUITE.case("PF-B07", "SetInterrupted", needs=("set_interrupted",))
async def both_calls_share_their_request_ids(fixture: Fixture) -> None:
    """SetInterrupted with the request_id of another flag, or of a PersistState, is refused; its own is repeatable."""
    await fixture.save('{"n":1}', request_id="q1")
    await refused(fixture.set_interrupted(True, request_id="q1"), "IDEMPOTENCY_CONFLICT", ANOTHER)
    await fixture.set_interrupted(True, request_id="q2")
    await fixture.set_interrupted(True, request_id="q2")
    await refused(fixture.set_interrupted(False, request_id="q2"), "IDEMPOTENCY_CONFLICT", ANOTHER)
