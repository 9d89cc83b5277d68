"""Runs: saving, reading, listing, the active one."""

from __future__ import annotations

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.session_store.suite import SUITE, Fixture, pages, together
from turndock.errors import TurndockError
from turndock.types.v1 import Failure, Page, Response, RunStatus

PENDING = RunStatus.RUN_STATUS_PENDING
RUNNING = RunStatus.RUN_STATUS_RUNNING
COMPLETED = RunStatus.RUN_STATUS_COMPLETED
FAILED = RunStatus.RUN_STATUS_FAILED
UNSPECIFIED = RunStatus.RUN_STATUS_UNSPECIFIED


@SUITE.case("SaveRun")
async def saving_a_run_replaces_all_but_its_creation(fixture: Fixture) -> None:
    """SaveRun inserts the run or replaces every field but id, session_id and created_at."""
    await fixture.save(fixture.session())
    first = fixture.run(
        created_at_us=1_000, metadata_json='{"a":1}', provider="p", failure=Failure(reason="x")
    )
    await fixture.save_run(first)
    later = fixture.run(status=COMPLETED, created_at_us=9_999, prompt="other", response=Response(text="ok"))
    answered = await fixture.save_run(later)
    for stored in (answered, await fixture.read_run()):
        equal((stored.status, stored.prompt, stored.response.text), (COMPLETED, "other", "ok"), "Replaced.")
        equal(
            (stored.metadata_json, stored.provider), ("", ""), "Fields the later save left empty are empty."
        )
        holds(not stored.HasField("failure"), "A failure the later save does not have is gone.")
        equal(stored.created_at_us, 1_000, "created_at stays as the first save had it.")
    fresh = await fixture.save_run(fixture.run("run_2"))
    holds(fresh.created_at_us > 0, "The store sets created_at on the first save when it is 0.")
    equal(await fixture.run_ids(), ["run_1", "run_2"], "One row for each run.")


@SUITE.case("S-02")
async def an_unknown_run_is_not_found(fixture: Fixture) -> None:
    """GetRun of an unknown run, or of another session's, is NOT_FOUND / RUN_NOT_FOUND."""
    await refused(fixture.read_run("nope"), "RUN_NOT_FOUND", "GetRun in an unknown session fails.")
    await fixture.save(fixture.session())
    await fixture.save_run(fixture.run("run_1"))
    await refused(fixture.read_run("nope"), "RUN_NOT_FOUND", "GetRun of an unknown id fails.")
    call = fixture.read_run("run_1", "ses_2")
    await refused(call, "RUN_NOT_FOUND", "GetRun finds a run only in its own session.")


@SUITE.case("SaveRun")
async def run_ids_are_unique_within_a_session_only(fixture: Fixture) -> None:
    """Two sessions may have runs of the same id, also of ids with slashes, and neither touches the other."""
    name = "q1/chain/1"
    await fixture.save_run(fixture.run(name, "ses_1", prompt="one"))
    await fixture.save_run(fixture.run(name, "ses_2", prompt="two"))
    equal((await fixture.read_run(name, "ses_1")).prompt, "one", "The first session's run is its own.")
    equal((await fixture.read_run(name, "ses_2")).prompt, "two", "The second session's run is its own.")


@SUITE.case("S-03")
async def runs_of_an_unknown_session_are_an_empty_list(fixture: Fixture) -> None:
    """ListRuns of an unknown session is OK and empty."""
    response = await fixture.list_runs("nope")
    equal((len(response.runs), response.next_cursor), (0, ""), "No runs, no cursor, no error.")


@SUITE.case("ListRuns")
async def runs_are_listed_in_mailbox_order(fixture: Fixture) -> None:
    """ListRuns orders by queue_key, then created_at, then id, on every page, and filters by status."""
    places = {"e": (2, 1), "d": (1, 9), "c": (1, 5), "b": (1, 5), "a": (-3, 7)}
    for run_id, (queue_key, created) in places.items():
        status = COMPLETED if run_id == "a" else PENDING
        run = fixture.run(run_id, queue_key=queue_key, created_at_us=created, status=status)
        await fixture.save_run(run)
    expected = ["a", "b", "c", "d", "e"]
    equal(await fixture.run_ids(), expected, "queue_key, then created_at, then id.")
    rows = await pages(lambda cursor: fixture.list_runs(page=Page(limit=2, cursor=cursor)))
    found = [run.id for page in rows for run in page.runs]
    equal(found, expected, "Pages of two hold the same runs in the same order.")
    equal(await fixture.run_ids(statuses=[PENDING]), expected[1:], "Only runs of that status.")
    equal(await fixture.run_ids(statuses=[RUNNING, COMPLETED]), ["a"], "Several statuses match any of them.")
    for limit in (0, 1_001):
        call = fixture.list_runs(page=Page(limit=limit))
        await refused(call, "VALIDATION_ERROR", f"limit = {limit} is refused.", field="limit")


@SUITE.case("S-06")
async def the_active_run_is_the_running_one(fixture: Fixture) -> None:
    """GetActiveRun returns the RUNNING run as soon as it is saved, and OK with nothing when there is none."""
    equal(await fixture.active_run("nope"), "", "An unknown session has no active run.")
    await fixture.save(fixture.session())
    for status, expected in ((PENDING, ""), (RUNNING, "run_1"), (COMPLETED, "")):
        await fixture.save_run(fixture.run(status=status))
        equal(await fixture.active_run(), expected, f"With a run in status {RunStatus.Name(status)}.")
    await fixture.save_run(fixture.run("run_2", status=RUNNING))
    equal(await fixture.active_run(), "run_2", "Another run is active now.")


@SUITE.case("SaveRun")
async def a_run_is_saved_only_from_the_expected_status(fixture: Fixture) -> None:
    """With expected_status SaveRun is a compare-and-set: INVALID_TRANSITION, nothing saved, when it is another."""
    await fixture.save_run(fixture.run(status=RUNNING))
    call = fixture.save_run(fixture.run(status=FAILED), expected_status=PENDING)
    await refused(call, "INVALID_TRANSITION", "The stored status is RUNNING, not PENDING.")
    equal((await fixture.read_run()).status, RUNNING, "The refused save changes nothing.")
    await fixture.save_run(fixture.run(status=COMPLETED), expected_status=RUNNING)
    call = fixture.save_run(fixture.run(status=FAILED), expected_status=RUNNING)
    await refused(call, "INVALID_TRANSITION", "A run reaches one terminal status; the second is refused.")
    equal((await fixture.read_run()).status, COMPLETED, "The first terminal status stays.")
    call = fixture.save_run(fixture.run("new"), expected_status=PENDING)
    await refused(call, "INVALID_TRANSITION", "A run that is not stored is not PENDING.")
    await refused(fixture.read_run("new"), "RUN_NOT_FOUND", "The refused run is not stored.")
    await fixture.save_run(fixture.run("new"), expected_status=UNSPECIFIED)
    call = fixture.save_run(fixture.run("new"), expected_status=UNSPECIFIED)
    await refused(
        call, "INVALID_TRANSITION", "Expecting UNSPECIFIED is expecting that the run is not stored."
    )


@SUITE.case("SaveRun")
async def one_of_many_writers_wins_a_run(fixture: Fixture) -> None:
    """Of writers that expect the same status at the same time, one is stored and the others are refused."""
    await fixture.save_run(fixture.run(status=RUNNING))
    writers = [
        fixture.save_run(fixture.run(status=COMPLETED, provider=f"p{number}"), expected_status=RUNNING)
        for number in range(10)
    ]
    answers = await together(writers)
    stored = [answer for answer in answers if not isinstance(answer, TurndockError)]
    reasons = {answer.reason for answer in answers if isinstance(answer, TurndockError)}
    equal((len(stored), reasons), (1, {"INVALID_TRANSITION"}), "One winner; the others are told why.")
    equal((await fixture.read_run()).provider, stored[0].provider, "What is stored is the winner's.")


@SUITE.case("SaveRun")
async def a_run_that_is_wrong_is_refused_by_its_field(fixture: Fixture) -> None:
    """What must not be stored is INVALID_ARGUMENT naming the field, and nothing is stored."""
    wrong = (
        ("run.id", fixture.run("")),
        ("run.id", fixture.run("x" * 257)),
        ("run.session_id", fixture.run(session_id="")),
        ("run.status", fixture.run(status=UNSPECIFIED)),
        ("run.metadata_json", fixture.run(metadata_json="nonsense")),
        ("run.provider_metadata_json", fixture.run(provider_metadata_json='"text"')),
    )
    for field, run in wrong:
        await refused(fixture.save_run(run), "VALIDATION_ERROR", f"This run is refused: {run}", field=field)
    equal(await fixture.run_ids(), [], "A refused run is not stored.")
    await fixture.save_run(fixture.run("x" * 256))
