"""Ownership: claims, leases, fences, orphans."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.session_store.suite import (
    LEASE_MS,
    MAILBOX,
    NOW_US,
    SUITE,
    Fixture,
    eventually,
    together,
)
from turndock.errors import TurndockError
from turndock.store.v1 import (
    AppendEventRequest,
    Claim,
    ClaimAgentResponse,
    EnqueueRunResponse,
    RenewClaimsRequest,
)
from turndock.types.v1 import Custom, EventType, Fence, ParkedTurn, RunStatus, Session, SessionStatus

PENDING = RunStatus.RUN_STATUS_PENDING
RUNNING = RunStatus.RUN_STATUS_RUNNING
COMPLETED = RunStatus.RUN_STATUS_COMPLETED
_FAR_OFF_US = 32_503_680_000_000_000
"""The year 3000."""
SHORT_MS = 50
"""A lease that a case waits for the end of."""


def writes(fixture: Fixture, fence: Fence | None) -> dict[str, Callable[[], Awaitable[object]]]:
    """Every write that only an owner may make, under a fence or without one."""
    return {
        "SaveSession": lambda: fixture.save(fixture.session(tags=["late"]), fence=fence),
        "SaveRun": lambda: fixture.save_run(fixture.run("late"), fence=fence),
        "AppendEvent": lambda: fixture.store.append_event(
            AppendEventRequest(scope=fixture.scope, event=fixture.event(), fence=fence)
        ),
        "AppendEventWithSequence": lambda: fixture.append_one(fixture.event(), fence=fence),
        "AppendEvents": lambda: fixture.append(fixture.event(), fixture.event(), fence=fence),
        "Flush": lambda: fixture.flush(
            fixture.session(tags=["late"]), fixture.run("late"), fixture.events(1), fence=fence
        ),
        "DeleteSession": lambda: fixture.delete(fence=fence),
    }


async def refused_everywhere(fixture: Fixture, fence: Fence | None, why: str) -> None:
    """Every owner's write is FENCED and changes nothing."""
    head = await fixture.head()
    for name, write in writes(fixture, fence).items():
        await refused(write(), "FENCED", f"{name} {why}.")
    stored = await fixture.read_session()
    equal((len(stored.tags), stored.last_sequence), (0, head), "No fenced write changes the session.")
    await refused(fixture.read_run("late"), "RUN_NOT_FOUND", "No fenced write stores a run.")
    equal(await fixture.head(), head, "No fenced write stores an event.")


async def renewed(
    fixture: Fixture, owner: str, *claims: tuple[str, int], lease_ms: int = LEASE_MS
) -> list[str]:
    """RenewClaims; the sessions whose claims are lost."""
    request = RenewClaimsRequest(
        owner=owner,
        lease_ms=lease_ms,
        claims=[
            Claim(scope=fixture.scope, session_id=session_id, epoch=epoch) for session_id, epoch in claims
        ],
    )
    return [claim.session_id for claim in (await fixture.mailbox.renew_claims(request)).lost]


@SUITE.case("Fence")
async def a_write_below_the_highest_epoch_seen_is_fenced(fixture: Fixture) -> None:
    """A fenced write raises the bar: writes below the highest epoch seen are FENCED, at or above it they are not."""
    await fixture.save(fixture.session(), fence=Fence(epoch=5))
    await fixture.append(fixture.event(), fence=Fence(epoch=7))
    for epoch in (1, 5, 6):
        await refused_everywhere(fixture, Fence(epoch=epoch), f"with epoch {epoch} comes after epoch 7")
    await fixture.append(fixture.event(), fence=Fence(epoch=7))
    await fixture.append(fixture.event(session_id="ses_2"), fence=Fence(epoch=1))
    call = fixture.append(fixture.event(), fence=Fence())
    await refused(call, "VALIDATION_ERROR", "No claim has epoch 0.", field="fence.epoch")


@SUITE.case("Fence")
async def a_refused_write_raises_no_bar(fixture: Fixture) -> None:
    """An epoch that came with a write that failed has not been seen."""
    await fixture.save(fixture.session(), fence=Fence(epoch=2))
    call = fixture.append(fixture.event(), fence=Fence(epoch=9), expected={"last_sequence": 4})
    await refused(call, "SEQUENCE_CONFLICT", "The log is empty.")
    await fixture.append(fixture.event(), fence=Fence(epoch=2))


@SUITE.case("ClaimAgent", needs=(MAILBOX,))
async def a_claim_returns_all_an_owner_needs(fixture: Fixture) -> None:
    """ClaimAgent returns the session and its runs that wait, run or have a decision pending, in mailbox order."""
    await fixture.save(fixture.session(tags=["t"]))
    await fixture.append(*fixture.events(3))
    for run_id in ("a", "b", "c", "d", "e"):
        await fixture.enqueue(fixture.run(run_id))
    keys = {run.id: run.queue_key for run in (await fixture.list_runs()).runs}
    await fixture.save_run(fixture.run("a", status=COMPLETED, queue_key=keys["a"]))
    await fixture.save_run(fixture.run("b", status=COMPLETED, queue_key=keys["b"], decision_pending=True))
    await fixture.save_run(fixture.run("c", status=RUNNING, queue_key=keys["c"]))
    await fixture.edit("e", before_run_id="d")
    claim = await fixture.claim()
    holds(claim.epoch > 0, "An epoch is above 0.")
    equal(
        claim.session,
        await fixture.read_session(),
        "The session as GetSession has it, last_sequence included.",
    )
    equal(
        [run.id for run in claim.runs],
        ["b", "c", "e", "d"],
        "Undecided, running, waiting; what is over is left out.",
    )
    equal(claim.runs[2], await fixture.read_run("e"), "The runs are as GetRun has them.")
    await refused(fixture.claim("unknown"), "SESSION_NOT_FOUND", "One cannot own what is not there.")


@SUITE.case("ClaimAgent", needs=(MAILBOX,))
async def a_claim_holds_until_its_lease_ends(fixture: Fixture) -> None:
    """While a lease runs another owner is CLAIM_CONFLICT; afterwards it gets the claim, with a higher epoch."""
    await fixture.save(fixture.session())
    first = (await fixture.claim(owner="host-a", lease_ms=LEASE_MS)).epoch
    await refused(fixture.claim(owner="host-b"), "CLAIM_CONFLICT", "host-a's lease runs.")
    again = (await fixture.claim(owner="host-a", lease_ms=SHORT_MS)).epoch
    holds(again > first, f"Its owner may claim again, with an epoch above {first}, not {again}.")
    late = await eventually(lambda: fixture.claim(owner="host-b"), not_yet="CLAIM_CONFLICT")
    holds(late.epoch > again, f"The next owner's epoch is above {again}, not {late.epoch}.")
    await refused_everywhere(fixture, Fence(epoch=again), "by the owner whose lease ran out")
    for name, owner, lease_ms in (("owner", "", 1), ("lease_ms", "host-a", 0), ("lease_ms", "host-a", -1)):
        call = fixture.claim(owner=owner, lease_ms=lease_ms)
        await refused(call, "VALIDATION_ERROR", f"A claim with a bad {name} is refused.", field=name)


@SUITE.case("ClaimAgent", needs=(MAILBOX,))
async def a_redelivered_ticket_takes_the_claim_over(fixture: Fixture) -> None:
    """The ticket a live claim was made with takes it over; no other ticket does, and no empty one."""
    await fixture.save(fixture.session())
    first = (await fixture.claim(owner="host-a", ticket_id="t1")).epoch
    for ticket_id in ("t2", ""):
        call = fixture.claim(owner="host-b", ticket_id=ticket_id)
        await refused(call, "CLAIM_CONFLICT", f"Ticket {ticket_id!r} is not the one host-a claimed with.")
    second = (await fixture.claim(owner="host-b", ticket_id="t1")).epoch
    holds(second > first, "The redelivered ticket gets a higher epoch.")
    await refused_everywhere(fixture, Fence(epoch=first), "by the owner whose ticket was redelivered")
    await fixture.save(fixture.session("ses_2"))
    await fixture.claim("ses_2", owner="host-a")
    call = fixture.claim("ses_2", owner="host-b", ticket_id="")
    await refused(call, "CLAIM_CONFLICT", "Two claims without a ticket are not the same ticket.")


@SUITE.case("ClaimAgent", needs=(MAILBOX,))
async def a_sole_host_takes_every_claim_over(fixture: Fixture) -> None:
    """A host that vouches for being the only one gets a claim whoever's lease runs."""
    await fixture.save(fixture.session())
    first = (await fixture.claim(owner="dead")).epoch
    second = (await fixture.claim(owner="host-b", sole_host=True)).epoch
    holds(second > first, "The claim passes on with a higher epoch.")
    await refused(fixture.claim(owner="dead"), "CLAIM_CONFLICT", "The former owner has lost it.")


@SUITE.case("ClaimAgent", needs=(MAILBOX,))
async def of_claims_at_the_same_time_one_is_granted(fixture: Fixture) -> None:
    """Of ten hosts that claim at the same time, one becomes the owner."""
    await fixture.save(fixture.session())
    answers = await together(fixture.claim(owner=f"host-{number}") for number in range(10))
    granted = [answer for answer in answers if isinstance(answer, ClaimAgentResponse)]
    refusals = [answer.reason for answer in answers if isinstance(answer, TurndockError)]
    equal((len(granted), refusals), (1, ["CLAIM_CONFLICT"] * 9), "One owner, nine refusals.")


@SUITE.case("Fence", needs=(MAILBOX,))
async def a_claimed_session_is_its_owners_to_write(fixture: Fixture) -> None:
    """While a session is claimed a write without a fence, or with an older epoch, is FENCED and changes nothing."""
    await fixture.save(fixture.session())
    old = (await fixture.claim(owner="host-a")).epoch
    epoch = (await fixture.claim(owner="host-a")).epoch
    await refused_everywhere(fixture, None, "without a fence")
    await refused_everywhere(fixture, Fence(epoch=old), "with an older epoch")
    for name, write in writes(fixture, Fence(epoch=epoch)).items():
        try:
            await write()
        except TurndockError as error:
            holds(False, f"{name} by the owner is refused: {error}")
    await refused(fixture.read_session(), "SESSION_NOT_FOUND", "The owner's last write deleted the session.")


@SUITE.case("Fence", needs=(MAILBOX,))
async def the_mailbox_is_open_to_all(fixture: Fixture) -> None:
    """EnqueueRun, EditRun and CancelRun need no fence while the session is claimed, and name its owner."""
    await fixture.save(fixture.session())
    equal((await fixture.enqueue(fixture.run("a"))).owner, "", "Nobody owns the session yet.")
    epoch = (await fixture.claim(owner="host-a")).epoch
    equal((await fixture.enqueue(fixture.run("b"))).owner, "host-a", "The answer names the owner.")
    await fixture.edit("b", before_run_id="a")
    await fixture.cancel("a")
    await fixture.enqueue(fixture.run("c"), fence=Fence(epoch=epoch))
    other = (await fixture.claim(owner="host-b", sole_host=True)).epoch
    call = fixture.enqueue(fixture.run("d"), fence=Fence(epoch=epoch))
    await refused(call, "FENCED", "A former owner that says it is the owner is refused.")
    equal((await fixture.enqueue(fixture.run("c"))).owner, "host-b", "A retry names the owner, too.")
    await fixture.append(fixture.event(), fence=Fence(epoch=other))


@SUITE.case("RenewClaims", needs=(MAILBOX,))
async def claims_are_renewed_in_bulk(fixture: Fixture) -> None:
    """RenewClaims prolongs the claims its owner holds and names those it has lost."""
    epochs: dict[str, int] = {}
    for session_id in ("kept", "taken", "released", "lapsed"):
        await fixture.save(fixture.session(session_id))
        epochs[session_id] = (await fixture.claim(session_id, lease_ms=SHORT_MS)).epoch
    await renewed(fixture, "host-a", ("kept", epochs["kept"]))
    await fixture.claim("taken", owner="host-b", sole_host=True)
    await fixture.release(epochs["released"], "released")
    lapsed = ("lapsed", epochs.pop("lapsed"))
    lost = await renewed(fixture, "host-a", *epochs.items(), ("unknown", 1))
    equal(lost, ["taken", "released", "unknown"], "What others took, what was given up, what is not there.")
    await fixture.claim("released", owner="host-b")
    await eventually(lambda: fixture.claim("lapsed", owner="host-b"), not_yet="CLAIM_CONFLICT")
    equal(await renewed(fixture, "host-a", lapsed), ["lapsed"], "A lease that was not renewed was taken.")
    call = fixture.claim("kept", owner="host-b")
    await refused(call, "CLAIM_CONFLICT", "The renewed lease runs on although the first would be over.")
    again = (await fixture.claim("kept")).epoch
    equal(
        await renewed(fixture, "host-a", ("kept", epochs["kept"])),
        ["kept"],
        "An older epoch of one's own is lost.",
    )
    equal(
        await renewed(fixture, "host-b", ("kept", again)), ["kept"], "Another owner's claim is not one's own."
    )
    equal(await renewed(fixture, "host-a"), [], "No claims, nothing lost.")


@SUITE.case("ReleaseIfEmpty", needs=(MAILBOX,))
async def a_claim_is_given_up_only_when_nothing_waits(fixture: Fixture) -> None:
    """ReleaseIfEmpty answers false, and the claim stays, while a run waits that could be dispatched."""
    await fixture.save(fixture.session())
    epoch = (await fixture.claim()).epoch
    await fixture.enqueue(fixture.run("a"))
    equal(await fixture.release(epoch), False, "A run waits.")
    await refused(fixture.claim(owner="host-b"), "CLAIM_CONFLICT", "The caller still owns the agent.")
    await fixture.cancel("a")
    equal(await fixture.release(epoch), True, "Nothing waits.")
    equal((await fixture.enqueue(fixture.run("b"))).owner, "", "Nobody owns it now.")
    second = (await fixture.claim(owner="host-b")).epoch
    await refused(fixture.release(epoch), "FENCED", "A former owner cannot give up what is another's.")
    equal(await fixture.release(second, force=True), True, "With force it is given up although a run waits.")
    await fixture.append(fixture.event())


@SUITE.case("ReleaseIfEmpty", needs=(MAILBOX,))
async def a_halted_session_can_be_given_up(fixture: Fixture) -> None:
    """The runs of a halted session cannot be dispatched, so they do not keep the claim."""
    await fixture.save(fixture.agent_session(halted=True))
    await fixture.enqueue(fixture.run("a"))
    epoch = (await fixture.claim()).epoch
    equal(await fixture.release(epoch), True, "What waits in a halted session does not hold its owner.")


@SUITE.case("ReleaseIfEmpty", needs=(MAILBOX,))
async def a_paused_session_can_be_given_up(fixture: Fixture) -> None:
    """Nothing is dispatched while a turn is parked, so what waits behind it does not keep the claim."""
    await fixture.save(_paused(fixture, "ses_1"))
    await fixture.save_run(fixture.run("parked", status=RUNNING))
    await fixture.enqueue(fixture.run("a"))
    epoch = (await fixture.claim()).epoch
    equal(await fixture.release(epoch), True, "What waits in a paused session does not hold its owner.")


@SUITE.case("ReleaseIfEmpty", needs=(MAILBOX,))
async def no_run_falls_between_enqueue_and_release(fixture: Fixture) -> None:
    """Whoever enqueues while the owner gives up either keeps the owner or learns that there is none."""
    await fixture.save(fixture.session())
    for number in range(20):
        epoch = (await fixture.claim()).epoch
        release, enqueue = fixture.release(epoch), fixture.enqueue(fixture.run(f"r{number}"))
        if number % 2:
            released, answer = await together((release, _owner(enqueue)))
        else:
            answer, released = await together((_owner(enqueue), release))
        equal(
            answer,
            "" if released else "host-a",
            f"Released: {released}; the run was told its owner is {answer!r}.",
        )
        await fixture.cancel(f"r{number}")
        if not released:
            await fixture.release(epoch)


async def _owner(call: Awaitable[EnqueueRunResponse]) -> str:
    return (await call).owner


@SUITE.case("ListOrphans", needs=(MAILBOX,))
async def work_without_an_owner_is_an_orphan(fixture: Fixture) -> None:
    """ListOrphans lists sessions with runs that wait or run, or an unfinished decision, and nobody's running lease."""
    statuses = {"pending": PENDING, "running": RUNNING, "undecided": COMPLETED, "done": COMPLETED}
    for session_id, status in statuses.items():
        await fixture.save(fixture.session(session_id))
        run = fixture.run("r", session_id, status=status, decision_pending=session_id == "undecided")
        await fixture.save_run(run)
    await fixture.save(fixture.session("idle"))
    equal(
        await fixture.orphans(),
        ["pending", "running", "undecided"],
        "Sessions with work, each with its scope.",
    )
    await fixture.claim("pending", owner="host-a")
    await fixture.claim("running", owner="host-a", lease_ms=SHORT_MS)
    equal(await fixture.orphans(owner="host-a"), ["undecided"], "One's own claims are no orphans.")
    await eventually(lambda: _claim_and_give_up(fixture, "running"), not_yet="CLAIM_CONFLICT")
    equal(
        await fixture.orphans(),
        ["running", "undecided"],
        "What is claimed is no orphan; what was given up is.",
    )
    sole = await fixture.orphans(sole_host=True)
    equal(sole, ["pending", "running", "undecided"], "For a sole host other owners' claims count as none.")
    paged = await fixture.orphans(sole_host=True, limit=1)
    equal(paged, sole, "Page by page it is the same list.")


def _paused(fixture: Fixture, session_id: str, wake_at_us: int | None = None) -> Session:
    session = fixture.agent_session(
        session_id, name=session_id, parked=ParkedTurn(run_id="parked", wake_at_us=wake_at_us)
    )
    session.status = SessionStatus.SESSION_STATUS_PAUSED
    return session


async def _claim_and_give_up(fixture: Fixture, session_id: str) -> None:
    await fixture.release((await fixture.claim(session_id, owner="host-b")).epoch, session_id, force=True)


@SUITE.case("ListOrphans", needs=(MAILBOX,))
async def what_waits_in_a_halted_session_is_no_work(fixture: Fixture) -> None:
    """The PENDING runs of a halted session make no orphan of it until it is unhalted; all other work does."""
    statuses = {"pending": PENDING, "running": RUNNING, "undecided": COMPLETED}
    for session_id, status in statuses.items():
        await fixture.save(fixture.agent_session(session_id, name=session_id, halted=True))
        run = fixture.run("r", session_id, status=status, decision_pending=session_id == "undecided")
        await fixture.save_run(run)
        await fixture.save_run(fixture.run("waits", session_id))
    equal(await fixture.orphans(), ["running", "undecided"], "Nobody may dispatch what waits.")
    await fixture.save(fixture.agent_session("pending", name="pending"))
    equal(await fixture.orphans(), ["pending", "running", "undecided"], "It is unhalted.")


@SUITE.case("ListOrphans", needs=(MAILBOX,))
async def a_paused_session_has_no_work_before_its_time(fixture: Fixture) -> None:
    """A PAUSED session is no orphan, whatever it holds, before its parked turn's wake_at_us; after it, it is."""
    notified = Custom(name="turndock.notified")
    wakes = {"early": NOW_US, "late": _FAR_OFF_US, "never": None}
    for session_id, wake_at_us in wakes.items():
        await fixture.save(_paused(fixture, session_id, wake_at_us))
        await fixture.save_run(fixture.run("parked", session_id, status=RUNNING))
        await fixture.save_run(fixture.run("waits", session_id))
        event = fixture.event(session_id=session_id, type=EventType.EVENT_TYPE_CUSTOM, custom=notified)
        await fixture.append(event)
    equal(await fixture.orphans(), ["early"], "An approval of one of them has expired.")
    await fixture.save(fixture.agent_session("never", name="never"))
    equal(await fixture.orphans(), ["early", "never"], "The other one goes on.")


@SUITE.case("ListOrphans", needs=(MAILBOX,))
async def an_unapplied_notification_is_work(fixture: Fixture) -> None:
    """A notification whose number is above the agent's notified_sequence makes its session an orphan."""
    await fixture.save(fixture.agent_session())
    await fixture.append(fixture.event())
    equal(await fixture.orphans(), [], "An ordinary event is no work.")
    custom = EventType.EVENT_TYPE_CUSTOM
    await fixture.append(fixture.event(type=custom, custom=Custom(name="turndock.title")))
    equal(await fixture.orphans(), [], "Another custom event is no work.")
    await fixture.append(fixture.event(type=custom, custom=Custom(name="turndock.notified")))
    equal(await fixture.orphans(), ["ses_1"], "A notification waits.")
    await fixture.save(fixture.agent_session(notified_sequence=3))
    equal(await fixture.orphans(), [], "Its effect is stored.")
    await fixture.append(fixture.event(type=custom, custom=Custom(name="turndock.notified")))
    equal(await fixture.orphans(), ["ses_1"], "The next one waits.")
