"""What is saved is what is loaded."""

from __future__ import annotations

import asyncio

from turndock import jsontext
from turndock.conformance.agent_persistence.suite import (
    ON_COMPLETION,
    ON_ERROR,
    SUITE,
    Fixture,
    snapshot_of,
)
from turndock.conformance.claims import copied, equal, holds, refused
from turndock.store.v1 import Lifecycle, Snapshot
from turndock.types.v1 import ApprovalDecision, ToolApprovalRequested

FULL = Snapshot(
    version=1,
    state_json='{"count":7}',
    serialized_at_us=1_700_000_000_000_001,
    last_sequence=12,
    incarnation="inc",
    run_id="run/chain/1",
    interrupted=True,
    pending_approvals=[
        ToolApprovalRequested(
            approval_id="ap-1",
            tool_call_id="call-1",
            tool_name="write_file",
            arguments_json='{"path":"a"}',
            arguments_sha256=bytes(32),
            allowed_decisions=[ApprovalDecision.APPROVAL_DECISION_APPROVE],
            expires_at_us=0,
            message="May I?",
        )
    ],
    halted=True,
    title="Title ✓",
    provider_session_id="thread-1",
    metadata_json='{"k":1}',
)


@SUITE.case("P-11", "LoadState")
async def what_was_never_saved_is_not_found(fixture: Fixture) -> None:
    """LoadState of a conversation without a snapshot is NOT_FOUND, not an empty snapshot."""
    await refused(fixture.load(), "NOT_FOUND", "There is no snapshot.")
    await fixture.save(conversation_id="other")
    await refused(fixture.load(), "NOT_FOUND", "Another conversation's snapshot is not this one's.")


@SUITE.case("P-01", "PersistState", "LoadState")
async def a_snapshot_is_loaded_as_it_was_saved(fixture: Fixture) -> None:
    """LoadState returns every field of the snapshot, and the lifecycle if it is kept."""
    await fixture.persistence.persist_state(fixture.saving(FULL))
    loaded = await fixture.load()
    equal(loaded.snapshot, FULL, "The snapshot comes back as it was saved.")
    holds(
        loaded.lifecycle in {Lifecycle.LIFECYCLE_UNSPECIFIED, ON_COMPLETION},
        f"The lifecycle is the one it was saved with, or not kept; it was {loaded.lifecycle}.",
    )


@SUITE.case("P-02", "PersistState")
async def the_last_snapshot_counts(fixture: Fixture) -> None:
    """PersistState replaces the snapshot before as a whole, and repeating it is harmless."""
    await fixture.persistence.persist_state(fixture.saving(FULL))
    later = snapshot_of('{"count":8}')
    for _ in range(2):
        await fixture.persistence.persist_state(fixture.saving(later, lifecycle=ON_ERROR))
        loaded = await fixture.load()
        equal(loaded.snapshot, later, "The later snapshot is there, and nothing of the earlier one.")
        holds(loaded.lifecycle in {Lifecycle.LIFECYCLE_UNSPECIFIED, ON_ERROR}, "So is its lifecycle.")


@SUITE.case("P-11", "PersistState")
async def what_a_store_does_not_know_is_passed_on(fixture: Fixture) -> None:
    """A snapshot of an unknown version, without a state, and a lifecycle from a later release are kept unchanged."""
    unknown = Snapshot(version=99, title="from the future")
    await fixture.persistence.persist_state(fixture.saving(unknown, lifecycle=77))
    loaded = await fixture.load()
    equal(loaded.snapshot, unknown, "A version the store does not know is passed on unchanged.")
    holds(loaded.lifecycle in {0, 77}, "So is a lifecycle it does not know, if it keeps any.")


@SUITE.case("PF-B25", "PersistState")
async def numbers_and_texts_keep_every_digit(fixture: Fixture) -> None:
    """A state's text comes back byte for byte: integers beyond 2^53, 1 beside 1.0, true, and any Unicode."""
    exact = '{"big":9223372036854775807,"count":7,"flag":true,"id":9007199254740993,"one":1.0,"text":"é😀 ﬁ"}'
    await fixture.save(exact)
    equal(await fixture.state(), exact, "The state is the same text.")
    values = jsontext.parse_object(await fixture.state(), "state_json")
    equal(values["id"], 9007199254740993, "Numbers keep every digit.")


@SUITE.case("PersistState")
async def a_large_snapshot_is_kept(fixture: Fixture) -> None:
    """A snapshot of nearly 1 MiB is kept whole."""
    state = '{"a":"%s"}' % ("x" * ((1 << 20) - 200))
    await fixture.save(state)
    holds(await fixture.state() == state, "All of it comes back.")


@SUITE.case("HandsOff")
async def a_message_handed_over_is_left_alone(fixture: Fixture) -> None:
    """PersistState changes no message it is given."""
    request = fixture.saving(FULL, request_id="q1")
    before = copied(request)
    await fixture.persistence.persist_state(request)
    equal(request, before, "The message is as it was.")


@SUITE.case("PF-E05", "PersistState")
async def snapshots_saved_at_once_are_each_whole(fixture: Fixture) -> None:
    """Of snapshots saved at the same time one remains, whole; those of other conversations are not disturbed."""
    count = 20
    states = [jsontext.canonical({"n": n, "filling": [n] * 50}) for n in range(count)]
    same = [fixture.save(state) for state in states]
    apart = [fixture.save(state, conversation_id=f"c{n}") for n, state in enumerate(states)]
    await asyncio.gather(*same, *apart)
    holds(await fixture.state() in states, "One of the snapshots is there as it was saved.")
    for n, state in enumerate(states):
        equal(await fixture.state(conversation=f"c{n}"), state, "Each conversation has its own.")
