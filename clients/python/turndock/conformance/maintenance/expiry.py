"""Soft deletion and hard deletion: what goes, what stays, and whose it is meanwhile."""

from __future__ import annotations

from typing import Any

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.maintenance.suite import (
    ACTIVE,
    COMPLETED,
    MAILBOX,
    SUITE,
    UNLIMITED,
    Fixture,
    ago,
    at_most,
)
from turndock.conformance.session_store.suite import together
from turndock.errors import TurndockError
from turndock.store.v1 import RetentionPolicy, SessionStatusList, TagList
from turndock.types.v1 import EventType, RunStatus, SessionStatus

PENDING = SessionStatus.SESSION_STATUS_PENDING
RACES = 20


@SUITE.case("R-02")
async def an_ended_session_expires_by_its_last_change(fixture: Fixture) -> None:
    """By default what ended over 90 days ago is marked: not what is younger, active, paused or pinned."""
    await fixture.save("old", days=100)
    await fixture.save("failed", days=91, status=SessionStatus.SESSION_STATUS_FAILED)
    await fixture.save("cancelled", days=91, status=SessionStatus.SESSION_STATUS_CANCELLED)
    await fixture.save("new")
    await fixture.save("almost", days=89)
    await fixture.save("active", days=100, status=ACTIVE)
    await fixture.save("paused", days=100, status=SessionStatus.SESSION_STATUS_PAUSED)
    await fixture.save("pending", days=100, status=PENDING)
    await fixture.save("pinned", days=100, tags=["other", "pinned"])
    await fixture.save("touched", created_at_us=ago(120))
    before = await fixture.sessions.read_session("old")
    answer = await fixture.soft_delete()
    wanted = ["cancelled", "failed", "old"]
    equal(sorted(answer.session_ids), wanted, "What has expired is marked, and nothing else.")
    equal(answer.sessions_soft_deleted, 3, "The answer counts what was marked.")
    session = await fixture.sessions.read_session("old")
    holds(session.HasField("deleted_at_us"), "A soft-deleted session is still there, with deleted_at.")
    equal(session.updated_at_us, before.updated_at_us, "Marking a session is no change of it.")
    for session_id in ("new", "almost", "active", "paused", "pending", "pinned", "touched"):
        equal(await fixture.is_marked(session_id), False, f"Session {session_id!r} stays as it is.")
    equal((await fixture.soft_delete()).sessions_soft_deleted, 0, "What is marked is passed over.")


@SUITE.case("R-02")
async def every_age_of_a_policy_counts(fixture: Fixture) -> None:
    """max_session_age_days is for every status that is not exempt; of two ages the lower counts."""
    await fixture.save("pending", days=12, status=PENDING)
    await fixture.save("ended", days=12)
    await fixture.save("active", days=12, status=ACTIVE)
    older = RetentionPolicy(max_session_age_days=at_most(20), max_completed_session_age_days=at_most(20))
    equal(list((await fixture.soft_delete(older)).session_ids), [], "Nothing is older than 20 days.")
    ended = RetentionPolicy(max_session_age_days=at_most(20), max_completed_session_age_days=at_most(10))
    equal(list((await fixture.soft_delete(ended)).session_ids), ["ended"], "Ended after 10 days.")
    await fixture.save("ended", days=12)
    any_status = RetentionPolicy(max_session_age_days=at_most(10), max_completed_session_age_days=at_most(20))
    found = sorted((await fixture.soft_delete(any_status)).session_ids)
    equal(found, ["ended", "pending"], "Any status after 10 days, ended ones, too.")
    none = RetentionPolicy(max_completed_session_age_days=UNLIMITED)
    await fixture.save("ended", days=1_000)
    equal((await fixture.soft_delete(none)).sessions_soft_deleted, 0, "Without an age nothing expires.")


@SUITE.case("R-02")
async def exemptions_are_the_policys(fixture: Fixture) -> None:
    """Lists of exempt statuses and tags replace the defaults, also when they are empty."""
    await fixture.save("active", days=100, status=ACTIVE)
    await fixture.save("pinned", days=100, tags=["pinned"])
    await fixture.save("legal", days=100, tags=["legal"])
    await fixture.save("ended", days=100)
    age = at_most(50)
    statuses = SessionStatusList(statuses=[COMPLETED])
    policy = RetentionPolicy(max_session_age_days=age, exempt_statuses=statuses)
    equal(list((await fixture.soft_delete(policy)).session_ids), ["active"], "Only COMPLETED is exempt.")
    policy = RetentionPolicy(max_session_age_days=age, exempt_tags=TagList(tags=["legal", "none"]))
    found = sorted((await fixture.soft_delete(policy)).session_ids)
    equal(found, ["ended", "pinned"], "Only sessions with one of these tags are exempt.")
    policy = RetentionPolicy(exempt_tags=TagList(), exempt_statuses=SessionStatusList())
    equal(list((await fixture.soft_delete(policy)).session_ids), ["legal"], "Empty lists exempt nothing.")


@SUITE.case("R-02")
async def a_marked_session_comes_back_by_saving_it(fixture: Fixture) -> None:
    """Saving a soft-deleted session without deleted_at brings it back, and a hard deletion passes over it."""
    session = await fixture.save("ses_1", days=100, deleted_days=60)
    session.ClearField("deleted_at_us")
    await fixture.sessions.save(session)
    equal((await fixture.hard_delete()).sessions_hard_deleted, 0, "The session is not deleted any more.")
    await fixture.sessions.read_session("ses_1")


@SUITE.case("R-02", "PF-E27")
async def a_session_in_use_does_not_expire(fixture: Fixture) -> None:
    """A session whose agent has not stopped, or that has a run which is not over, is neither marked nor deleted."""
    for name, deleted in (("old", None), ("marked", 60)):
        fields: dict[str, Any] = {"days": 100, "deleted_days": deleted}
        await fixture.save(f"{name} agent", **fields, agent=fixture.sessions.agent_session().agent)
        await fixture.save(f"{name} run", **fields)
        running = fixture.sessions.run("run_1", f"{name} run", status=RunStatus.RUN_STATUS_RUNNING)
        await fixture.sessions.save_run(running)
        await fixture.save(f"{name} queue", **fields)
        await fixture.sessions.save_run(fixture.sessions.run("run_1", f"{name} queue"))
        stopped = fixture.sessions.agent_session(stopped=True).agent
        await fixture.save(f"{name} stopped", **fields, agent=stopped)
    equal(list((await fixture.soft_delete()).session_ids), ["old stopped"], "Only that is left alone.")
    equal(list((await fixture.hard_delete()).session_ids), ["marked stopped"], "Only that is left alone.")


@SUITE.case("PF-E27", needs=(MAILBOX,))
async def a_claimed_session_does_not_expire(fixture: Fixture) -> None:
    """A session somebody owns is neither marked nor deleted under its owner, whatever its record says."""
    await fixture.save("old", days=100)
    await fixture.save("marked", days=100, deleted_days=60)
    epochs = {name: (await fixture.sessions.claim(name)).epoch for name in ("old", "marked")}
    equal((await fixture.soft_delete()).sessions_soft_deleted, 0, "An owned session stays unmarked.")
    equal((await fixture.hard_delete()).sessions_hard_deleted, 0, "An owned session stays.")
    for name, epoch in epochs.items():
        await fixture.sessions.release(epoch, name)
    equal(list((await fixture.soft_delete()).session_ids), ["old"], "A released one is marked.")
    equal(list((await fixture.hard_delete()).session_ids), ["marked"], "A released one is deleted.")


@SUITE.case("PF-E27", needs=(MAILBOX,))
async def no_run_starts_in_a_session_that_expires(fixture: Fixture) -> None:
    """Between marking a session and enqueuing a run one comes first: never does a run wait in a marked session."""
    for attempt in range(RACES):
        session_id = f"ses_{attempt}"
        await fixture.save(session_id, days=100)
        run = fixture.sessions.run("run_1", session_id)
        calls = (fixture.sessions.enqueue(run), fixture.soft_delete())
        outcomes = await together(calls if attempt % 2 else calls[::-1])
        is_refused = any(isinstance(outcome, TurndockError) for outcome in outcomes)
        is_marked = await fixture.is_marked(session_id)
        equal(is_refused, is_marked, "The run is refused, or the session stays as it is.")


@SUITE.case("R-04")
async def a_marked_session_is_deleted_with_all_it_has(fixture: Fixture) -> None:
    """What was marked over 30 days ago goes with runs, events, artifact rows and counter; the bytes stay."""
    for session_id, deleted in (("gone", 60), ("kept", 29)):
        await fixture.save(session_id, days=100, deleted_days=deleted)
        await fixture.ended_run(session_id, "run_1", RunStatus.RUN_STATUS_COMPLETED)
        await fixture.append(session_id, *[EventType.EVENT_TYPE_RUN_STARTED] * 2, run_id="run_1")
        await fixture.files.put(b"bytes", f"{session_id}/file", session_id=session_id)
    await fixture.save("unmarked", days=1_000)
    incarnation = (await fixture.sessions.read_session("gone")).incarnation
    answer = await fixture.hard_delete()
    equal((answer.sessions_hard_deleted, list(answer.session_ids)), (1, ["gone"]), "One session is deleted.")
    await refused(fixture.sessions.read_session("gone"), "SESSION_NOT_FOUND", "It is gone.")
    await refused(fixture.sessions.read_run("run_1", "gone"), "RUN_NOT_FOUND", "Its runs are gone.")
    equal(await fixture.numbers("gone"), [], "Its events are gone.")
    equal(await fixture.sessions.head("gone"), 0, "Its counter is gone.")
    equal(await fixture.files.keys("gone"), (), "Its artifact rows are gone.")
    equal(await fixture.files.get("gone/file"), b"bytes", "The bytes stay.")
    equal(await fixture.numbers("kept"), [1, 2], "What was marked lately stays.")
    equal(await fixture.files.keys("kept"), ("kept/file",), "With its artifacts.")
    again = await fixture.save("gone")
    holds(again.incarnation != incarnation, "A tombstone keeps the incarnation from coming back.")


@SUITE.case("R-04")
async def bytes_go_with_the_session_when_asked_to(fixture: Fixture) -> None:
    """delete_artifacts deletes the bytes, too."""
    await fixture.save("gone", days=100, deleted_days=60)
    await fixture.files.put(b"bytes", "file", session_id="gone")
    await fixture.hard_delete(delete_artifacts=True)
    await refused(fixture.files.get("file"), "NOT_FOUND", "The bytes are gone.")


@SUITE.case("R-04")
async def hard_deletion_waits_as_long_as_the_policy_says(fixture: Fixture) -> None:
    """hard_delete_after_days counts from the marking; unlimited deletes nothing."""
    await fixture.save("ses_1", days=1_000, deleted_days=500)
    policy = RetentionPolicy(hard_delete_after_days=UNLIMITED)
    equal((await fixture.hard_delete(policy)).sessions_hard_deleted, 0, "Nothing is ever deleted.")
    policy = RetentionPolicy(hard_delete_after_days=at_most(501))
    equal((await fixture.hard_delete(policy)).sessions_hard_deleted, 0, "It is too early.")
    policy = RetentionPolicy(hard_delete_after_days=at_most(499))
    equal((await fixture.hard_delete(policy)).sessions_hard_deleted, 1, "It is time.")


@SUITE.case("R-04")
async def one_call_does_not_mark_and_delete(fixture: Fixture) -> None:
    """A session that an Execute marks is not deleted by the same one."""
    await fixture.save("ses_1", days=1_000)
    report = await fixture.execute(RetentionPolicy(hard_delete_after_days=at_most(1)))
    equal((report.sessions_soft_deleted, report.sessions_hard_deleted), (1, 0), "It is marked, and stays.")
    equal(await fixture.is_marked("ses_1"), True, "It is there, marked.")


@SUITE.case("Batches")
async def small_batches_come_to_the_same_end(fixture: Fixture) -> None:
    """Transactions of one row mark and delete all there is."""
    for number in range(5):
        await fixture.save(f"old {number}", days=100)
        await fixture.save(f"marked {number}", days=100, deleted_days=60)
    policy = RetentionPolicy(batch_size=2)
    equal((await fixture.hard_delete(policy)).sessions_hard_deleted, 5, "All that were marked go.")
    equal((await fixture.soft_delete(policy)).sessions_soft_deleted, 5, "All that have expired are marked.")
