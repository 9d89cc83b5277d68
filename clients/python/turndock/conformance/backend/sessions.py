"""Sessions: what a backend is given back is what it gave, for as long as the conversation lives."""

from __future__ import annotations

from turndock.conformance.backend.suite import RESUME_SESSION, Fixture, case
from turndock.conformance.claims import equal, holds
from turndock.errors import Code, TurndockError
from turndock.types.v1 import BackendSession

MAX_DATA_BYTES = 1 << 20
MAX_NAME_BYTES = 1024
GARBAGE = (
    BackendSession(),
    BackendSession(data=b"\xff\x00 nobody wrote this", provider_session_id="conformance-unknown"),
    BackendSession(data=b'{"conformance": [1, 2, 3]}'),
)
"""Sessions that no backend gave."""


def check_session(session: BackendSession, what: str) -> None:
    """Fail unless the host can store a session."""
    size, name = len(session.data), session.provider_session_id
    holds(size <= MAX_DATA_BYTES, f"{what} has {size} bytes of data; the limit is {MAX_DATA_BYTES}.")
    holds(
        len(name.encode()) <= MAX_NAME_BYTES and not any(ord(character) < 32 for character in name),
        f"{what} has a provider_session_id {name[:80]!r}; it must be at most {MAX_NAME_BYTES} bytes without "
        "control characters.",
    )


@case("StartSession", "B-01")
async def a_started_session_takes_a_prompt(fixture: Fixture) -> None:
    """StartSession returns a session that the host can store and whose first prompt is answered."""
    talk = await fixture.start()
    check_session(talk.session, "The session StartSession returned")
    (await talk.ask()).result()


@case("StartSession", "PF-B07")
async def a_repeated_start_returns_the_same_session(fixture: Fixture) -> None:
    """StartSession repeated with the same request_id returns the same session, and that is usable."""
    talk = await fixture.start()
    equal(
        await talk.start(),
        talk.session,
        "StartSession with the same request_id must return the same session.",
    )
    (await talk.ask()).result()


@case("Accepted", "B-10")
async def a_conversation_goes_on_with_the_session_of_the_last_turn(fixture: Fixture) -> None:
    """Each turn is given the session the last one accepted, with what was folded into it, and is answered."""
    talk = await fixture.start()
    for number in range(1, 5):
        (await talk.ask()).result(f"Turn {number} of a conversation")
        check_session(talk.session, f"The session after turn {number}")


@case("Accepted", "B-07")
async def a_turn_may_be_given_the_session_from_before_the_last_one(fixture: Fixture) -> None:
    """After a turn the host gave up, the next one is given the session from before it, and is answered."""
    talk = await fixture.start()
    before = talk.session
    (await talk.ask()).result()
    after, talk.session = talk.session, before
    await talk.ask_on()
    talk.session = after
    await talk.ask_on()


@case("Accepted", "B-01")
async def a_session_is_accepted_once_and_first(fixture: Fixture) -> None:
    """A turn says which session holds after it at most once, and before anything else."""
    async with (await fixture.start()).open() as turn:
        await turn.end()
    holds(not turn.accepted_late, "`accept` must be called before the turn says anything.")
    holds(len(turn.accepted) <= 1, f"`accept` may be called once a turn; it was {len(turn.accepted)} times.")
    for session in turn.accepted:
        check_session(session, "The accepted session")


@case("BackendSession")
async def a_session_is_only_its_bytes(fixture: Fixture) -> None:
    """A session that was stored as bytes and read again is as good as the one the backend gave."""
    talk = await fixture.start()
    for _ in range(2):
        talk.session = BackendSession.FromString(talk.session.SerializeToString())
        (await talk.ask()).result("A turn whose session was stored and read again")


@case("ResumeSession", needs=[RESUME_SESSION])
async def a_session_can_be_resumed(fixture: Fixture) -> None:
    """ResumeSession of what the backend gave returns a session that takes a prompt, at once or after turns."""
    talk = await fixture.start()
    for _ in range(2):
        talk.session = await talk.resume()
        check_session(talk.session, "The session ResumeSession returned")
        (await talk.ask()).result("The turn after ResumeSession")


@case("ResumeSession", needs=[RESUME_SESSION])
async def resuming_keeps_the_name_of_the_conversation(fixture: Fixture) -> None:
    """ResumeSession of a session with a provider_session_id returns one that has it still."""
    talk = await fixture.start()
    (await talk.ask()).result()
    name = talk.session.provider_session_id
    equal((await talk.resume()).provider_session_id, name, "ResumeSession must keep the provider_session_id.")


@case("ResumeSession", needs=[RESUME_SESSION])
async def resuming_what_nobody_gave_harms_nobody(fixture: Fixture) -> None:
    """ResumeSession of an unknown session is refused as what it is, not a crash, and disturbs no other turn."""
    talk = await fixture.start()
    async with talk.open() as turn:
        await turn.spoken()
        for garbage in GARBAGE:
            try:
                session = await (await fixture.start()).resume(garbage)
            except TurndockError as error:
                holds(
                    error.code in {Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION},
                    "ResumeSession of an unknown session must be refused with NOT_FOUND, or with what is wrong "
                    f"with it; it was refused with {error.code.name}: {error}",
                )
            except Exception as error:  # noqa: BLE001 - whatever a backend raises is a finding
                holds(
                    False,
                    "ResumeSession of an unknown session must raise a TurndockError such as NOT_FOUND; it raised "
                    f"{type(error).__name__}: {error}",
                )
            else:
                check_session(session, "The session ResumeSession returned")
        await turn.end()
    turn.result("A turn beside a ResumeSession of an unknown session")


@case("TerminateSession")
async def terminating_is_repeatable(fixture: Fixture) -> None:
    """TerminateSession of a session that was terminated already is OK."""
    talk = await fixture.start()
    (await talk.ask()).result()
    await talk.terminate()
    await talk.terminate()


@case("TerminateSession")
async def terminating_an_unknown_session_is_ok(fixture: Fixture) -> None:
    """TerminateSession of a session the backend does not know is OK."""
    talk = await fixture.start()
    for garbage in GARBAGE:
        talk.session = garbage
        try:
            await talk.terminate()
        except TurndockError as error:
            holds(False, f"TerminateSession of an unknown session must be OK; it was refused: {error}")


@case("TerminateSession")
async def terminating_one_session_leaves_the_others(fixture: Fixture) -> None:
    """TerminateSession releases what that session holds and nothing of another's."""
    talk, other = await fixture.start(), await fixture.start()
    async with talk.open() as turn:
        await turn.spoken()
        await other.terminate()
        await turn.end()
    turn.result("A turn beside the end of another session")
    await talk.ask_on()
