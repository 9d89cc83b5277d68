"""The interrupted flag, where there is one."""

from __future__ import annotations

from turndock.conformance.agent_persistence.suite import SUITE, Fixture
from turndock.conformance.claims import equal, refused
from turndock.ports import InterruptedFlag
from turndock.types.v1 import Fence, Scope


@SUITE.case("P-03", "SetInterrupted", needs=("set_interrupted",))
async def a_flag_needs_no_snapshot(fixture: Fixture) -> None:
    """SetInterrupted of a conversation without a snapshot is OK, is repeatable, and makes no snapshot."""
    for flag in (True, True, False, False):
        await fixture.set_interrupted(flag)
    await refused(fixture.load(), "NOT_FOUND", "A flag is no snapshot.")


@SUITE.case("P-03", "SetInterrupted", needs=("set_interrupted",))
async def a_flag_leaves_the_snapshot_alone(fixture: Fixture) -> None:
    """SetInterrupted changes nothing of the snapshot, which says itself what held when it was taken."""
    await fixture.save('{"n":1}')
    before = await fixture.load()
    await fixture.set_interrupted(True)
    equal(await fixture.load(), before, "The snapshot is as it was saved.")


@SUITE.case("SetInterrupted", "Abilities")
async def an_absent_flag_says_that_it_is_absent(fixture: Fixture) -> None:
    """SetInterrupted of an implementation without the flag is UNIMPLEMENTED; it never half works."""
    if "set_interrupted" not in fixture.abilities and isinstance(fixture.persistence, InterruptedFlag):
        call = fixture.set_interrupted(True)
        await refused(call, "CAPABILITY_NOT_SUPPORTED", "The flag is what it is said not to have.")


@SUITE.case("SetInterrupted", needs=("set_interrupted",))
async def a_flag_of_nobody_is_refused(fixture: Fixture) -> None:
    """SetInterrupted without an agent, or with an empty tenant, names the field."""
    await refused(
        fixture.set_interrupted(True, ""), "VALIDATION_ERROR", "The agent is missing.", field="agent_id"
    )
    nobody = fixture.within(Scope())
    await refused(
        nobody.set_interrupted(True), "VALIDATION_ERROR", "The tenant is missing.", field="scope.tenant"
    )


@SUITE.case("SetInterrupted", "PF-E05", needs=("set_interrupted", "fences"))
async def a_flag_of_a_replaced_owner_is_fenced(fixture: Fixture) -> None:
    """SetInterrupted and PersistState see each other's epochs."""
    await fixture.set_interrupted(True, fence=Fence(epoch=3))
    await refused(fixture.set_interrupted(False, fence=Fence(epoch=2)), "FENCED", "Epoch 2 is over.")
    await refused(fixture.save(fence=Fence(epoch=2)), "FENCED", "Epoch 2 is over.")
    await fixture.save(fence=Fence(epoch=4))
    await refused(fixture.set_interrupted(False, fence=Fence(epoch=3)), "FENCED", "Epoch 3 is over.")
