"""What an AgentPersistence refuses, and that a refused call changes nothing."""

from __future__ import annotations

from typing import Any

from turndock.conformance.agent_persistence.suite import SUITE, Fixture, snapshot_of
from turndock.conformance.claims import equal, refused
from turndock.store.v1 import Lifecycle, Snapshot
from turndock.types.v1 import Fence, Scope


@SUITE.case("PersistState")
async def a_save_that_lacks_something_is_refused(fixture: Fixture) -> None:
    """PersistState without an agent, a lifecycle or a snapshot names the field and stores nothing."""
    await fixture.save('{"n":1}')
    new = snapshot_of('{"n":2}')
    wrong: tuple[tuple[str, Any], ...] = (
        ("agent_id", fixture.saving(new, "")),
        ("lifecycle", fixture.saving(new, lifecycle=Lifecycle.LIFECYCLE_UNSPECIFIED)),
        ("snapshot", fixture.saving(None)),
        ("fence.epoch", fixture.saving(new, fence=Fence())),
    )
    for field, request in wrong:
        call = fixture.persistence.persist_state(request)
        await refused(call, "VALIDATION_ERROR", f"{field} is missing.", field=field)
    equal(await fixture.state(), '{"n":1}', "What was there stays.")


@SUITE.case("PersistState", "PF-B25")
async def a_snapshot_that_is_no_json_is_refused(fixture: Fixture) -> None:
    """A state that is no JSON, and metadata that is no JSON object, are refused with their field."""
    await fixture.save('{"n":1}')
    for state in ("{", "NaN", '{"a":1e999}', '{"a":1,"a":2}', '"\\ud83d"'):
        call = fixture.save(state)
        await refused(call, "VALIDATION_ERROR", f"The state {state!r} is refused.", field="state_json")
    for metadata in ("[1]", "7", "{"):
        saving = fixture.persistence.persist_state(fixture.saving(Snapshot(metadata_json=metadata)))
        sentence = f"The metadata {metadata!r} is refused."
        await refused(saving, "VALIDATION_ERROR", sentence, field="metadata_json")
    equal(await fixture.state(), '{"n":1}', "What was there stays.")


@SUITE.case("PersistState")
async def a_snapshot_above_a_mebibyte_is_refused(fixture: Fixture) -> None:
    """A snapshot of more than 1 MiB is LIMIT_EXCEEDED, and what was there stays."""
    await fixture.save('{"n":1}')
    large = '{"a":"%s"}' % ("x" * (1 << 20))
    await refused(fixture.save(large), "LIMIT_EXCEEDED", "It is too large.", field="snapshot")
    equal(await fixture.state(), '{"n":1}', "What was there stays.")


@SUITE.case("LoadState")
async def a_load_without_an_agent_is_refused(fixture: Fixture) -> None:
    """LoadState without an agent_id names the field, whatever the conversation."""
    await refused(fixture.load(""), "VALIDATION_ERROR", "The agent is missing.", field="agent_id")


@SUITE.case("P-13", "Scope")
async def an_empty_tenant_is_refused(fixture: Fixture) -> None:
    """A scope without a tenant is no scope: neither the unscoped partition nor all of them."""
    nobody = fixture.within(Scope(opaque=b"user-7"))
    for call in (nobody.save, nobody.load):
        await refused(call(), "VALIDATION_ERROR", "An empty tenant is refused.", field="scope.tenant")


@SUITE.case("PersistState", "PF-E05", needs=("fences",))
async def an_owner_that_was_replaced_is_fenced(fixture: Fixture) -> None:
    """A write with an epoch below the highest seen is FENCED and changes nothing; the owner's own go on."""
    await fixture.save('{"n":1}', fence=Fence(epoch=2))
    await refused(fixture.save('{"n":2}', fence=Fence(epoch=1)), "FENCED", "Epoch 1 is over.")
    equal(await fixture.state(), '{"n":1}', "What was there stays.")
    await fixture.save('{"n":3}', fence=Fence(epoch=2))
    await fixture.save('{"n":4}', fence=Fence(epoch=5))
    await refused(fixture.save('{"n":5}', fence=Fence(epoch=4)), "FENCED", "Epoch 4 is over.")
    equal(await fixture.state(), '{"n":4}', "The highest epoch's snapshot is there.")
    await fixture.save('{"n":6}', conversation_id="other", fence=Fence(epoch=1))
    equal(await fixture.state(conversation="other"), '{"n":6}', "Epochs belong to their conversation.")
