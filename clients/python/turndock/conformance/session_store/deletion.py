"""Deleting sessions, and what a later life of the same id has to do with the earlier one: nothing."""

from __future__ import annotations

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.session_store.suite import MAILBOX, SUITE, Fixture
from turndock.types.v1 import Fence, RunStatus


@SUITE.case("S-04")
async def deleting_a_session_is_idempotent(fixture: Fixture) -> None:
    """DeleteSession of a deleted or never known session is OK."""
    await fixture.save(fixture.session())
    await fixture.delete()
    await fixture.delete()
    await fixture.delete("never")
    await refused(fixture.read_session(), "SESSION_NOT_FOUND", "A deleted session is unknown.")


@SUITE.case("S-05")
async def deleting_a_session_takes_everything_of_it(fixture: Fixture) -> None:
    """DeleteSession removes runs, events and the counter with the session, and nothing of any other session."""
    for session_id in ("ses_1", "ses_2"):
        await fixture.save(fixture.session(session_id))
        await fixture.save_run(fixture.run("run_1", session_id, status=RunStatus.RUN_STATUS_RUNNING))
        await fixture.append(*fixture.events(2, session_id, run_id="run_1"))
    await fixture.delete("ses_1")
    await refused(fixture.read_run("run_1", "ses_1"), "RUN_NOT_FOUND", "The session's runs are gone.")
    equal(await fixture.run_ids("ses_1"), [], "The session's runs are not listed.")
    equal(await fixture.active_run("ses_1"), "", "The session has no active run.")
    log = await fixture.log("ses_1")
    equal((len(log.events), log.head, log.oldest), (0, 0, 0), "The session's events and counter are gone.")
    equal(log.incarnation, "", "A deleted session is unknown: it has no incarnation.")
    equal(await fixture.head("ses_1"), 0, "GetLatestSequence of a deleted session is 0.")
    equal(await fixture.numbers("ses_2"), [1, 2], "Another session's events stay.")
    equal(await fixture.active_run("ses_2"), "run_1", "Another session's run of the same id stays.")


@SUITE.case("S-05")
async def a_session_made_again_is_another_life(fixture: Fixture) -> None:
    """After a deletion the same id begins anew: another incarnation, numbers from 1, and no id is taken."""
    first = await fixture.save(fixture.session(created_at_us=5))
    kept = fixture.event("evt")
    await fixture.append(kept, *fixture.events(4))
    await fixture.delete()
    results = await fixture.append(kept)
    equal(results[0].duplicate, False, "An event id is free again when its session was deleted.")
    equal(results[0].event.sequence, 1, "The numbers of a session made again begin at 1.")
    second = await fixture.save(fixture.session())
    holds(second.incarnation not in {"", first.incarnation}, "A session made again has another incarnation.")
    equal(results[0].event.incarnation, second.incarnation, "Its events carry its own incarnation.")
    holds(second.created_at_us != 5, "created_at does not survive a deletion.")
    equal(second.last_sequence, 1, "last_sequence is that of the new log.")
    log = await fixture.log()
    equal(
        (log.incarnation, log.head), (second.incarnation, 1), "GetEvents tells the new incarnation and head."
    )


@SUITE.case("DeleteSession", needs=(MAILBOX,))
async def an_owner_of_an_earlier_life_stays_fenced(fixture: Fixture) -> None:
    """Epochs go on rising over a deletion, so that no owner of an earlier life is taken for a later one."""
    await fixture.save(fixture.session())
    before = (await fixture.claim()).epoch
    await fixture.delete(fence=Fence(epoch=before))
    await fixture.save(fixture.session())
    after = (await fixture.claim(owner="host-b")).epoch
    holds(after > before, f"A claim after the deletion has epoch {after}; it must be above {before}.")
    late = fixture.append(fixture.event(), fence=Fence(epoch=before))
    await refused(late, "FENCED", "The owner of the deleted session cannot write into the new one.")


@SUITE.case("DeleteSession", needs=(MAILBOX,))
async def a_deletion_ends_the_claim(fixture: Fixture) -> None:
    """DeleteSession takes the claim away with the session: the next life belongs to nobody."""
    await fixture.save(fixture.session())
    epoch = (await fixture.claim()).epoch
    await fixture.delete(fence=Fence(epoch=epoch))
    await fixture.save(fixture.session())
    answer = await fixture.enqueue(fixture.run())
    equal(answer.owner, "", "A session made again has no owner.")
    await fixture.claim(owner="host-b")


@SUITE.case("ListOrphans", needs=(MAILBOX,))
async def a_deleted_sessions_mailbox_is_gone(fixture: Fixture) -> None:
    """A run that waited in a deleted session never runs: it is no orphan, and the id can be enqueued again."""
    await fixture.save(fixture.session())
    await fixture.enqueue(fixture.run("run_1", request_sha256=b"one"))
    await fixture.delete()
    equal(await fixture.orphans(), [], "A deleted session has no work.")
    await fixture.save(fixture.session())
    answer = await fixture.enqueue(fixture.run("run_1", request_sha256=b"two"))
    equal((answer.duplicate, answer.pending_count), (False, 1), "The run's id is free again.")
