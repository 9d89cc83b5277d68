"""The mailbox: enqueueing, bounds, editing, cancelling."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.session_store.suite import MAILBOX, SUITE, Fixture, together
from turndock.errors import TurndockError
from turndock.store.v1 import EnqueueRunResponse, MailboxLimits
from turndock.types.v1 import Failure, RunStatus

PENDING = RunStatus.RUN_STATUS_PENDING
RUNNING = RunStatus.RUN_STATUS_RUNNING
COMPLETED = RunStatus.RUN_STATUS_COMPLETED
CANCELLED = RunStatus.RUN_STATUS_CANCELLED
MIB = 1 << 20


def limits(max_count: int, max_bytes: int = MIB) -> MailboxLimits:
    """Bounds of a mailbox."""
    return MailboxLimits(max_count=max_count, max_bytes=max_bytes)


async def busy(fixture: Fixture) -> None:
    """A session whose turn is under way."""
    await fixture.save(fixture.session())
    await fixture.save_run(fixture.run("turn", status=RUNNING))


async def waiting(fixture: Fixture) -> list[str]:
    """The runs that wait, first one first."""
    return await fixture.run_ids(statuses=[PENDING])


@SUITE.case("EnqueueRun", "M-03", needs=(MAILBOX,))
async def runs_wait_in_the_order_they_came(fixture: Fixture) -> None:
    """EnqueueRun stores a run as PENDING behind all that wait, and says how many wait."""
    await fixture.save(fixture.session())
    for number in range(1, 6):
        given = fixture.run(f"r{number}", status=COMPLETED, queue_key=-number, created_at_us=5)
        answer = await fixture.enqueue(given)
        equal(
            (answer.run.status, answer.duplicate),
            (PENDING, False),
            "A new run waits, whatever its writer says.",
        )
        equal(answer.pending_count, number, "pending_count counts the run itself.")
        holds(answer.run.created_at_us > 5, "created_at is the store's.")
        equal(answer.run, await fixture.read_run(f"r{number}"), "The answer has the run as stored.")
    equal(await waiting(fixture), ["r1", "r2", "r3", "r4", "r5"], "First come, first served.")
    equal(await fixture.active_run(), "", "A run that waits is not active.")


@SUITE.case("EnqueueRun", needs=(MAILBOX,))
async def all_mailboxes_of_a_scope_may_be_bounded_together(fixture: Fixture) -> None:
    """max_scope_count and max_scope_bytes bound what waits in a scope; what starts at once is let in."""
    for number in range(1, 4):
        session_id = f"ses_{number}"
        await fixture.save(fixture.session(session_id))
        await fixture.save_run(fixture.run(f"turn{number}", session_id=session_id, status=RUNNING))
    await fixture.save(fixture.session("ses_idle"))

    def enqueue(run_id: str, session_id: str, prompt: str = "x", **bounds: int) -> Awaitable[Any]:
        run = fixture.run(run_id, session_id=session_id, prompt=prompt)
        return fixture.enqueue(run, limits=MailboxLimits(max_count=9, max_bytes=MIB, **bounds))

    await enqueue("a", "ses_1", max_scope_count=2)
    await enqueue("b", "ses_2", "123", max_scope_count=2)
    error = await refused(
        enqueue("c", "ses_3", max_scope_count=2), "MAX_RUNS_EXCEEDED", "Two runs wait in the scope."
    )
    facts = {key: error.metadata.get(key) for key in ("queue", "limit", "max", "current")}
    equal(
        facts,
        {"queue": "prompts", "limit": "scope_count", "max": "2", "current": "2"},
        "The figures say what is full.",
    )
    error = await refused(
        enqueue("c", "ses_3", "12345", max_scope_bytes=8), "MAX_RUNS_EXCEEDED", "4 bytes wait, 5 came."
    )
    facts = {key: error.metadata.get(key) for key in ("limit", "max", "current", "incoming_bytes")}
    equal(
        facts,
        {"limit": "scope_bytes", "max": "8", "current": "4", "incoming_bytes": "5"},
        "The figures say what is full.",
    )
    equal(await fixture.run_ids("ses_3", statuses=[PENDING]), [], "A refused run is not stored.")
    await enqueue("d", "ses_idle", "12345", max_scope_count=0, max_scope_bytes=0)
    await enqueue("e", "ses_3", "12345")
    answers = await together(
        enqueue(f"r{number}", f"ses_{number % 3 + 1}", max_scope_count=7) for number in range(12)
    )
    stored = [answer for answer in answers if isinstance(answer, EnqueueRunResponse)]
    equal(len(stored), 3, "At the same time exactly as many are let in as there is room for.")


@SUITE.case("EnqueueRun", needs=(MAILBOX,))
async def a_run_can_go_to_the_front(fixture: Fixture) -> None:
    """With `front` a run goes before all that wait; the later of two such runs is first."""
    await busy(fixture)
    for run_id, front in (("a", False), ("b", True), ("c", False), ("d", True)):
        await fixture.enqueue(fixture.run(run_id), front=front)
    equal(await waiting(fixture), ["d", "b", "a", "c"], "Front runs first, the latest of them foremost.")


@SUITE.case("EnqueueRun", needs=(MAILBOX,))
async def a_run_needs_a_session_that_takes_it(fixture: Fixture) -> None:
    """EnqueueRun into an unknown session is SESSION_NOT_FOUND, for a stopped agent AGENT_STOPPED."""
    await refused(fixture.enqueue(fixture.run()), "SESSION_NOT_FOUND", "The session is unknown.")
    await fixture.save(fixture.agent_session("ses_1", stopped=True))
    await refused(fixture.enqueue(fixture.run()), "AGENT_STOPPED", "The session's agent has stopped.")
    equal(await fixture.run_ids(), [], "A refused run is not stored.")
    for field, run in (("run.id", fixture.run("")), ("run.session_id", fixture.run(session_id=""))):
        await refused(fixture.enqueue(run), "VALIDATION_ERROR", "This run is refused.", field=field)


@SUITE.case("PF-E27", needs=(MAILBOX,))
async def a_soft_deleted_session_takes_no_run(fixture: Fixture) -> None:
    """EnqueueRun into a session marked as deleted is INVALID_STATUS until a save takes the mark away."""
    await fixture.save(fixture.session(deleted_at_us=1))
    await refused(fixture.enqueue(fixture.run()), "INVALID_STATUS", "The session is marked as deleted.")
    equal(await fixture.run_ids(), [], "The refused run is not stored.")
    await fixture.save(fixture.session())
    await fixture.enqueue(fixture.run())


@SUITE.case("EnqueueRun", "PF-B07", needs=(MAILBOX,))
async def a_known_run_is_returned_as_it_stands(fixture: Fixture) -> None:
    """A retry with the same request_sha256 returns the stored run; with another it is IDEMPOTENCY_CONFLICT."""
    await fixture.save(fixture.session())
    given = fixture.run("r1", request_sha256=b"a" * 32)
    first = await fixture.enqueue(given)
    again = await fixture.enqueue(given)
    equal(
        (again.duplicate, again.run, again.pending_count),
        (True, first.run, 1),
        "The retry gets the stored run.",
    )
    other = fixture.run("r1", request_sha256=b"b" * 32)
    await refused(
        fixture.enqueue(other), "IDEMPOTENCY_CONFLICT", "Another request under the run's id is refused."
    )
    done = fixture.run("r1", status=COMPLETED, request_sha256=b"a" * 32)
    await fixture.save_run(done)
    again = await fixture.enqueue(given, limits=limits(0), only_if_idle=True)
    equal(
        (again.duplicate, again.run.status),
        (True, COMPLETED),
        "A retry after the run's end gets its outcome.",
    )
    equal((await fixture.read_run("r1")).status, COMPLETED, "A retry does not run it again.")


@SUITE.case("EnqueueRun", "PF-B07", needs=(MAILBOX,))
async def of_retries_at_the_same_time_one_is_stored(fixture: Fixture) -> None:
    """Ten retries at the same time make one run; all are answered, one of them as the first."""
    await fixture.save(fixture.session())
    given = fixture.run("r1", request_sha256=b"a")
    answers = await together(fixture.enqueue(given) for _ in range(10))
    stored = [answer for answer in answers if isinstance(answer, EnqueueRunResponse)]
    equal(len(stored), 10, f"Every retry is answered: {answers}.")
    equal([answer.duplicate for answer in stored].count(False), 1, "One of them stored the run.")
    equal(await waiting(fixture), ["r1"], "One run waits.")


@SUITE.case("M-26", needs=(MAILBOX,))
async def a_full_mailbox_refuses_with_the_figures(fixture: Fixture) -> None:
    """Beyond max_count EnqueueRun is MAX_RUNS_EXCEEDED with the figures, and nothing is stored."""
    await busy(fixture)
    await fixture.enqueue(fixture.run("two", prompt="12345"), limits=limits(1, 100))
    call = fixture.enqueue(fixture.run("three", prompt="123"), limits=limits(1, 100))
    error = await refused(call, "MAX_RUNS_EXCEEDED", "One run waits, and one may.")
    figures = {
        "queue": "prompts",
        "limit": "count",
        "pending_count": "1",
        "pending_bytes": "5",
        "incoming_bytes": "3",
        "max_count": "1",
        "max_bytes": "100",
    }
    equal(
        {name: error.metadata.get(name) for name in figures}, figures, "The error's metadata has the figures."
    )
    await refused(fixture.read_run("three"), "RUN_NOT_FOUND", "A refused run is not stored.")
    await fixture.cancel("two")
    await fixture.enqueue(fixture.run("three", prompt="123"), limits=limits(1, 100))
    await fixture.enqueue(fixture.run("four"))
    equal(
        await waiting(fixture),
        ["three", "four"],
        "A cancelled run makes room; without limits there are none.",
    )


@SUITE.case("M-26", needs=(MAILBOX,))
async def twenty_parallel_runs_meet_a_limit_of_three(fixture: Fixture) -> None:
    """Of 20 runs enqueued at the same time with max_count 3, exactly 3 are stored."""
    await busy(fixture)
    answers = await together(
        fixture.enqueue(fixture.run(f"r{number}"), limits=limits(3)) for number in range(20)
    )
    refusals = [answer.reason for answer in answers if isinstance(answer, TurndockError)]
    equal(refusals, ["MAX_RUNS_EXCEEDED"] * 17, "17 are refused.")
    accepted = sorted(answer.run.id for answer in answers if isinstance(answer, EnqueueRunResponse))
    equal(sorted(await waiting(fixture)), accepted, "The 3 that were accepted wait, and no other.")


@SUITE.case("M-26", needs=(MAILBOX,))
async def a_limit_of_nothing_lets_an_idle_session_run_one(fixture: Fixture) -> None:
    """The next run of an idle, not halted session does not count, neither in number nor in bytes."""
    none = limits(0, 0)
    await fixture.save(fixture.session())
    await fixture.enqueue(fixture.run("one", prompt="x" * 50), limits=none)
    await refused(
        fixture.enqueue(fixture.run("two"), limits=none), "MAX_RUNS_EXCEEDED", "One is next already."
    )
    await fixture.save_run(fixture.run("one", status=RUNNING))
    await refused(
        fixture.enqueue(fixture.run("two"), limits=none), "MAX_RUNS_EXCEEDED", "A turn is under way."
    )
    await fixture.save_run(fixture.run("one", status=COMPLETED))
    await fixture.enqueue(fixture.run("two"), limits=none)
    await fixture.save(fixture.agent_session("halted", "other", halted=True))
    call = fixture.enqueue(fixture.run("one", "halted"), limits=none)
    await refused(call, "MAX_RUNS_EXCEEDED", "A halted session has no next run; everything in it waits.")


@SUITE.case("M-26", needs=(MAILBOX,))
async def prompts_are_bounded_by_bytes(fixture: Fixture) -> None:
    """max_bytes bounds the prompts of all runs that wait, counted as UTF-8, the incoming one included."""
    await busy(fixture)
    await fixture.enqueue(fixture.run("a", prompt="é" * 40), limits=limits(9, 100))
    call = fixture.enqueue(fixture.run("b", prompt="x" * 21), limits=limits(9, 100))
    error = await refused(call, "MAX_RUNS_EXCEEDED", "80 bytes wait and 21 come; 100 may wait.")
    figures = tuple(error.metadata.get(name) for name in ("limit", "pending_bytes", "incoming_bytes"))
    equal(figures, ("bytes", "80", "21"), "The figures are bytes of UTF-8.")
    await fixture.enqueue(fixture.run("b", prompt="x" * 20), limits=limits(9, 100))


@SUITE.case("EnqueueRun", needs=(MAILBOX,))
async def a_run_can_ask_for_an_idle_session(fixture: Fixture) -> None:
    """With only_if_idle a run is AGENT_BUSY while another waits or runs, or the session is halted."""
    await fixture.save(fixture.session())
    await fixture.enqueue(fixture.run("one"), only_if_idle=True)
    call = fixture.enqueue(fixture.run("two"), only_if_idle=True)
    await refused(call, "AGENT_BUSY", "Another run waits.")
    await fixture.save_run(fixture.run("one", status=RUNNING))
    call = fixture.enqueue(fixture.run("two"), only_if_idle=True)
    await refused(call, "AGENT_BUSY", "Another run is under way.")
    await fixture.save_run(fixture.run("one", status=COMPLETED))
    await fixture.enqueue(fixture.run("two"), only_if_idle=True)
    await fixture.save(fixture.agent_session("halted", "other", halted=True))
    call = fixture.enqueue(fixture.run("one", "halted"), only_if_idle=True)
    await refused(call, "AGENT_BUSY", "The session is halted.")


@SUITE.case("EditRun", needs=(MAILBOX,))
async def a_waiting_run_can_be_edited_and_moved(fixture: Fixture) -> None:
    """EditRun changes the prompt, moves a run before another or to the tail, and leaves all else in order."""
    await busy(fixture)
    for run_id in "abcd":
        await fixture.enqueue(fixture.run(run_id, metadata_json='{"n":1}'))
    edited = await fixture.edit("b", prompt="other words")
    equal(
        (edited.prompt, edited.metadata_json),
        ("other words", '{"n":1}'),
        "The prompt is changed, nothing else.",
    )
    equal(await fixture.read_run("b"), edited, "The answer has the run as stored.")
    moves: tuple[tuple[str, dict[str, Any], list[str]], ...] = (
        ("d", {"before_run_id": "a"}, ["d", "a", "b", "c"]),
        ("a", {"before_run_id": "c"}, ["d", "b", "a", "c"]),
        ("d", {"to_tail": True}, ["b", "a", "c", "d"]),
        ("d", {"to_tail": True}, ["b", "a", "c", "d"]),
        ("b", {"before_run_id": "a"}, ["b", "a", "c", "d"]),
    )
    for run_id, place, expected in moves:
        await fixture.edit(run_id, **place)
        equal(await waiting(fixture), expected, f"After moving {run_id} by {place}.")
    await fixture.edit("c", prompt="", before_run_id="b")
    equal((await fixture.read_run("c")).prompt, "", "A prompt can be made empty; unset leaves it.")
    equal(await waiting(fixture), ["c", "b", "a", "d"], "Prompt and place can be changed at once.")
    await fixture.enqueue(fixture.run("e"))
    await fixture.enqueue(fixture.run("f"), front=True)
    equal(await waiting(fixture), ["f", "c", "b", "a", "d", "e"], "Later runs find their place after moves.")


@SUITE.case("EditRun", needs=(MAILBOX,))
async def only_a_waiting_run_can_be_edited(fixture: Fixture) -> None:
    """EditRun of a run that does not wait is INVALID_STATUS, of an unknown one RUN_NOT_FOUND; nothing changes."""
    await busy(fixture)
    await fixture.enqueue(fixture.run("a"))
    await fixture.enqueue(fixture.run("b"))
    await refused(fixture.edit("turn", prompt="x"), "INVALID_STATUS", "Its turn is under way.")
    await refused(fixture.edit("nope", prompt="x"), "RUN_NOT_FOUND", "The run is unknown.")
    await refused(fixture.edit("a", "ses_2", prompt="x"), "RUN_NOT_FOUND", "The run is another session's.")
    call = fixture.edit("b", prompt="x", before_run_id="turn")
    await refused(call, "INVALID_STATUS", "One cannot move before a run that is under way.")
    call = fixture.edit("b", prompt="x", before_run_id="nope")
    await refused(call, "RUN_NOT_FOUND", "One cannot move before a run that is not there.")
    call = fixture.edit("b", before_run_id="a", to_tail=True)
    await refused(call, "VALIDATION_ERROR", "Two places contradict each other.", field="to_tail")
    equal(await waiting(fixture), ["a", "b"], "The order is as before.")
    equal((await fixture.read_run("b")).prompt, "hi", "The prompt of a refused edit is not stored.")


@SUITE.case("CancelRun", needs=(MAILBOX,))
async def a_waiting_run_can_be_cancelled(fixture: Fixture) -> None:
    """CancelRun ends a PENDING run as CANCELLED with its failure, and appends its terminal event."""
    await busy(fixture)
    await fixture.enqueue(fixture.run("a"))
    await fixture.enqueue(fixture.run("b"))
    failure = Failure(reason="caller_gone", message="the caller left")
    event = fixture.event(run_id="a")
    response = await fixture.cancel("a", event=event, failure=failure)
    equal((response.run.status, response.run.failure), (CANCELLED, failure), "The run is CANCELLED, and why.")
    holds(response.run.ended_at_us > 0, "The run has an end.")
    equal(response.result.event.sequence, 1, "The terminal event has its number.")
    equal(await fixture.read_run("a"), response.run, "The answer has the run as stored.")
    equal(
        [stored.id for stored in (await fixture.log()).events],
        [event.id],
        "The terminal event is in the log.",
    )
    equal(await waiting(fixture), ["b"], "The others wait as before.")
    again = await fixture.cancel("a")
    equal((again.run, again.HasField("result")), (response.run, False), "A repeat returns the run as it is.")
    equal(await fixture.head(), 1, "A repeat appends no event.")


@SUITE.case("CancelRun", needs=(MAILBOX,))
async def only_a_waiting_run_can_be_cancelled(fixture: Fixture) -> None:
    """CancelRun of a run that runs or has ended otherwise is INVALID_STATUS; a bad call changes nothing."""
    await busy(fixture)
    await fixture.save_run(fixture.run("done", status=COMPLETED))
    await fixture.enqueue(fixture.run("a"))
    await refused(fixture.cancel("turn"), "INVALID_STATUS", "Its turn is under way.")
    await refused(fixture.cancel("done"), "INVALID_STATUS", "It has ended already.")
    await refused(fixture.cancel("nope"), "RUN_NOT_FOUND", "It is unknown.")
    await refused(fixture.cancel("a", "ses_2"), "RUN_NOT_FOUND", "It is another session's.")
    bad = fixture.event(run_id="a", time_us=0)
    call = fixture.cancel("a", event=bad)
    await refused(call, "VALIDATION_ERROR", "Its terminal event has no time.", field="event.time_us")
    equal(await fixture.active_run(), "turn", "The running run runs on.")
    equal(await waiting(fixture), ["a"], "The waiting run waits on.")
    equal(await fixture.head(), 0, "No terminal event is stored.")


@SUITE.case("CancelRun", "PF-B15", needs=(MAILBOX,))
async def a_run_is_dispatched_or_cancelled_never_both(fixture: Fixture) -> None:
    """When a run is started and cancelled at the same time, exactly one of the two succeeds."""
    await fixture.save(fixture.session())
    for number in range(10):
        run_id = f"r{number}"
        await fixture.enqueue(fixture.run(run_id))
        head = await fixture.head()
        started, cancelled = await together(
            (
                _reason(fixture.save_run(fixture.run(run_id, status=RUNNING), expected_status=PENDING)),
                _reason(fixture.cancel(run_id)),
            )
        )
        wins = [started, cancelled].count("")
        equal(wins, 1, f"One of both succeeds; starting: {started or 'OK'}, cancelling: {cancelled or 'OK'}.")
        status = (await fixture.read_run(run_id)).status
        equal(status, CANCELLED if not cancelled else RUNNING, "The run is what the winner made of it.")
        equal(
            await fixture.head() - head,
            1 if not cancelled else 0,
            "The terminal event is there if it was cancelled.",
        )
        await fixture.save_run(fixture.run(run_id, status=COMPLETED))


async def _reason(call: Awaitable[object]) -> str:
    """Why a call was refused; empty if it was not."""
    try:
        await call
    except TurndockError as error:
        return error.reason
    return ""
