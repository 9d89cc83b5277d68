"""Backends that break one sentence of their contract each, and the case that must find out."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from turndock import events
from turndock.backend.v1 import (
    CheckpointSessionRequest,
    CheckpointSessionResponse,
    InterruptRequest,
    InterruptResponse,
    Paused,
    PromptRequest,
    Result,
    ResumeSessionRequest,
    ResumeSessionResponse,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
    UpdateSessionRequest,
    UpdateSessionResponse,
)
from turndock.conformance.backend import Prompt, Prompts
from turndock.errors import not_found
from turndock.ports import Backend, TurnContext, TurnOutput
from turndock.types.v1 import (
    ApprovalDecision,
    BackendSession,
    Event,
    EventType,
    Failure,
    ToolApprovalRequested,
)

Outputs = AsyncIterator[TurnOutput | list[TurnOutput]]

PROMPTS: Final = Prompts(
    answering=Prompt("say hello there"),
    long_running=Prompt("wait"),
    failing=Prompt("fail"),
    checkpointing=Prompt("checkpoint"),
    tool_using=Prompt("tool"),
    repeating=lambda word: Prompt(f"say {word} and {word}"),
    asking=Prompt("ask"),
    parking=Prompt("park"),
)


def _session(turns: int, provider_session_id: str = "") -> BackendSession:
    return BackendSession(data=b"turns:%d" % turns, provider_session_id=provider_session_id)


class Parrot(Backend):
    """Does what a prompt says, and keeps every sentence of the contract."""

    def __init__(self) -> None:
        self.stops: dict[str, asyncio.Event] = {}

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse(session=_session(0))

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        if not request.session.data.startswith(b"turns:"):
            raise not_found("session", request.session.provider_session_id)
        return ResumeSessionResponse(session=request.session)

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        return TerminateSessionResponse()

    async def checkpoint_session(self, request: CheckpointSessionRequest) -> CheckpointSessionResponse:
        session = BackendSession(data=request.session.data, provider_session_id=request.provider_session_id)
        return CheckpointSessionResponse(session=session)

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        name = request.result.provider_session_id or request.session.provider_session_id
        session = BackendSession(data=request.session.data, provider_session_id=name)
        return UpdateSessionResponse(session=session)

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        stop = self.stops.get(request.turn_token)
        if stop is None:
            raise not_found("turn", request.turn_token)
        stop.set()
        return InterruptResponse()

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        turns = int(request.session.data.removeprefix(b"turns:"))
        turn.accept(_session(turns + 1, request.session.provider_session_id))
        stop = self.stops[request.turn_token] = asyncio.Event()
        try:
            async for output in self.say(request, turn, stop):
                yield output
        finally:
            self.stops.pop(request.turn_token, None)

    def asked(self, approval_id: str) -> ToolApprovalRequested:
        """What it asks people."""
        return ToolApprovalRequested(
            approval_id=approval_id, tool_call_id="t1", tool_name="read", arguments_json='{"path":"/x"}'
        )

    async def say(
        self, request: PromptRequest, turn: TurnContext, stop: asyncio.Event
    ) -> AsyncGenerator[TurnOutput]:
        """What a turn says."""
        name = request.session.provider_session_id or f"parrot-{request.session_id}"
        match request.prompt:
            case "wait":
                yield "waiting"
                await stop.wait()
                yield events.error("interrupted")
            case "fail":
                yield events.error("told_to")
            case "checkpoint":
                await turn.checkpoint(name)
                yield events.result("kept", provider_session_id=name)
            case "ask":
                decided = await turn.approval(self.asked("a1"))
                yield events.result(str(decided.decision))
            case "park" if not request.HasField("resume"):
                yield events.paused([self.asked("a1"), self.asked("a2")])
            case "park":
                yield events.result(" ".join(str(each.decision) for each in request.resume.decisions))
            case "tool":
                yield events.tool_use("t1", "read")
                yield events.tool_result("t1", "[1,2]")
                yield events.result("done")
            case text:
                for word in text.split(" "):
                    yield f"{word} "
                    if stop.is_set():
                        yield events.error("interrupted")
                        return
                yield events.usage(1, 2)
                yield events.result(provider_session_id=name)


# --- The end of a turn -----------------------------------------------------------------------------------------------


class SaysTwoTerminals(Parrot):
    """Ends twice."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            yield output
            if isinstance(output, Result):
                yield output


class SaysNoTerminal(Parrot):
    """Ends without a word."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            if not isinstance(output, Result):
                yield output


class SpeaksAfterItsTerminal(Parrot):
    """Reports usage when the result is out."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            yield output
        yield events.usage(1, 2)


class NeverLetsGo(Parrot):
    """Waits for something behind its terminal."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            yield output
        await asyncio.Event().wait()


class FailsWithoutAReason(Parrot):
    """A failure that says nothing."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            yield Failure(message="something went wrong") if isinstance(output, Failure) else output


class RaisesItsFailures(Parrot):
    """Raises where it should end with a failure."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            if isinstance(output, Failure):
                raise RuntimeError(output.reason)
            yield output


class ReadsPromptsAsFormats(Parrot):
    """Formats what people type."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        request.prompt.format(prompt=request.prompt)
        async for output in super().prompt(request, turn):
            yield output


# --- What a turn says ------------------------------------------------------------------------------------------------


class WritesTheHostsEvents(Parrot):
    """Says itself that its run has begun."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        yield Event(type=EventType.EVENT_TYPE_RUN_STARTED)
        async for output in super().prompt(request, turn):
            yield output


class EndsToolsItNeverBegan(Parrot):
    """Says only how a tool's call ended."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            if not (isinstance(output, Event) and output.type == EventType.EVENT_TYPE_TOOL_CALL_STARTED):
                yield output


class StreamsHalfCharacters(Parrot):
    """Cuts an emoji and loses the rest."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        yield "\ud83d"
        async for output in super().prompt(request, turn):
            yield output


class WritesPythonForJson(Parrot):
    """Puts the text of a dict where JSON belongs."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        yield events.custom("parrot.mood", str({"good": True}))
        async for output in super().prompt(request, turn):
            yield output


class CountsBackwards(Parrot):
    """Reports what a piece cost, not the run so far."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        yield events.usage(100, 7)
        async for output in super().prompt(request, turn):
            yield output


class AnswersEmpty(Parrot):
    """Streams an answer and says it was empty."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            yield events.result("") if isinstance(output, Result) else output


# --- Stopping --------------------------------------------------------------------------------------------------------


class IgnoresCancellation(Parrot):
    """Takes a cancellation for a hiccup and goes on."""

    async def say(
        self, request: PromptRequest, turn: TurnContext, stop: asyncio.Event
    ) -> AsyncGenerator[TurnOutput]:
        if request.prompt != "wait":
            async for output in super().say(request, turn, stop):
                yield output
            return
        yield "waiting"
        try:
            await stop.wait()
        except asyncio.CancelledError:
            await stop.wait()


class IgnoresClosing(Parrot):
    """Has a last word for everybody who leaves."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        try:
            async for output in super().prompt(request, turn):
                yield output
        finally:
            yield "bye"


class LeavesTasks(Parrot):
    """Forgets the task that does the work."""

    def __init__(self) -> None:
        super().__init__()
        self.work: list[asyncio.Task[Any]] = []

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        self.work.append(asyncio.create_task(asyncio.Event().wait()))
        async for output in super().prompt(request, turn):
            yield output


class ConfirmsNoInterrupt(Parrot):
    """Waits for a turn that waits for it."""

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        await super().interrupt(request)
        await asyncio.Event().wait()
        return InterruptResponse()


class InterruptsEverybody(Parrot):
    """Stops whatever runs."""

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        for stop in self.stops.values():
            stop.set()
        return InterruptResponse()


# --- Sessions --------------------------------------------------------------------------------------------------------


class MixesSessions(Parrot):
    """Keeps the prompt where all its turns look."""

    words: list[str]

    async def say(
        self, request: PromptRequest, turn: TurnContext, stop: asyncio.Event
    ) -> AsyncGenerator[TurnOutput]:
        self.words = request.prompt.split(" ")
        for index in range(len(self.words)):
            yield self.words[index] + " "
        yield events.result()


class TakesOneTurnAtATime(Parrot):
    """One lock for all agents."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async with self.lock:
            async for output in super().prompt(request, turn):
                yield output


class ChangesItsRequest(Parrot):
    """Counts in the session it was given."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            yield output
        request.session.data += b"0"


class SpendsSessions(Parrot):
    """Takes each session value once: the host can fall back to none."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: set[tuple[str, bytes]] = set()

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        key = request.session_id, request.session.data
        if key in self.spent:
            yield events.error("session_spent")
            return
        self.spent.add(key)
        async for output in super().prompt(request, turn):
            yield output


class AcceptsLate(Parrot):
    """Says at the end which session holds."""

    async def say(
        self, request: PromptRequest, turn: TurnContext, stop: asyncio.Event
    ) -> AsyncGenerator[TurnOutput]:
        yield "hello "
        turn.accept(_session(1))
        yield events.result()


class StartsAnew(Parrot):
    """A retry gets another session."""

    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        return StartSessionResponse(session=BackendSession(data=b"turns:%d" % uuid.uuid4().int))


class ResumesAnything(Parrot):
    """Trips over a session it did not give."""

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        return ResumeSessionResponse(session=_session(int(request.session.data.split(b":")[1])))


class RefusesToReleaseWhatItDoesNotKnow(Parrot):
    """An unknown session is NOT_FOUND."""

    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        if not request.session.data:
            raise not_found("session", "")
        return TerminateSessionResponse()


class FoldsTwice(Parrot):
    """Counts its calls of UpdateSession, not the turns."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = 0

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        self.updates += 1
        return UpdateSessionResponse(session=_session(self.updates))


class DropsCheckpoints(Parrot):
    """Returns the session as it is."""

    async def checkpoint_session(self, request: CheckpointSessionRequest) -> CheckpointSessionResponse:
        return CheckpointSessionResponse(session=request.session)


class ForgetsItsName(Parrot):
    """A result without a name takes the old one away."""

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        session = BackendSession(data=request.session.data)
        return UpdateSessionResponse(session=session)


# --- Approvals -------------------------------------------------------------------------------------------------------


class AsksInPython(Parrot):
    """Shows its arguments as Python writes them."""

    def asked(self, approval_id: str) -> ToolApprovalRequested:
        request = super().asked(approval_id)
        request.arguments_json = "{'path': None}"
        return request


class AsksTwiceUnderOneName(Parrot):
    """Requests that nobody can tell apart."""

    def asked(self, approval_id: str) -> ToolApprovalRequested:
        return super().asked("a1")


class AsksForNothing(Parrot):
    """Pauses, and does not say for what."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            yield events.paused([]) if isinstance(output, Paused) else output


class TakesExpiryForACrash(Parrot):
    """Knows three decisions, and nothing of one that nobody makes."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            if isinstance(output, Result) and output.text == str(ApprovalDecision.APPROVAL_DECISION_EXPIRED):
                raise KeyError(output.text)
            yield output


class WaitsForPeopleAlone(Parrot):
    """Does not let go while it waits for a decision."""

    async def say(
        self, request: PromptRequest, turn: TurnContext, stop: asyncio.Event
    ) -> AsyncGenerator[TurnOutput]:
        if request.prompt == "ask":
            asking = asyncio.create_task(turn.approval(self.asked("a1")))
            try:
                await asyncio.wait((asking,))
            except asyncio.CancelledError:
                await asyncio.wait((asking,), timeout=1.0)  # Only who insists gets his way.
                raise
            finally:
                asking.cancel()
            yield events.result("asked")
            return
        async for output in super().say(request, turn, stop):
            yield output


class AsksAgainAndAgain(Parrot):
    """Pauses however often it is taken up."""

    async def say(
        self, request: PromptRequest, turn: TurnContext, stop: asyncio.Event
    ) -> AsyncGenerator[TurnOutput]:
        bare = PromptRequest()
        bare.CopyFrom(request)
        bare.ClearField("resume")
        async for output in super().say(bare, turn, stop):
            yield output


class TakesDecisionsOut(Parrot):
    """Works the decisions off in the request it was given."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        async for output in super().prompt(request, turn):
            yield output
        if request.HasField("resume"):
            del request.resume.decisions[:]


class TriesOnce(Parrot):
    """Takes a further attempt at a run for a mistake."""

    async def prompt(self, request: PromptRequest, turn: TurnContext) -> Outputs:
        if request.attempt > 1:
            yield events.error("seen_before")
            return
        async for output in super().prompt(request, turn):
            yield output


class HidesACall(Parrot):
    """Has a call that it does not name."""

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities - {"resume_session"}


@dataclass(frozen=True)
class Mutant:
    backend: type[Parrot]
    fails: str
    """Name of the case that must find out."""


MUTANTS = (
    Mutant(SaysTwoTerminals, "a_turn_ends_with_one_terminal_and_it_is_last"),
    Mutant(SaysNoTerminal, "a_turn_ends_with_one_terminal_and_it_is_last"),
    Mutant(SpeaksAfterItsTerminal, "a_turn_ends_with_one_terminal_and_it_is_last"),
    Mutant(NeverLetsGo, "a_turn_ends_with_one_terminal_and_it_is_last"),
    Mutant(FailsWithoutAReason, "a_failure_says_why"),
    Mutant(RaisesItsFailures, "a_failure_says_why"),
    Mutant(RaisesItsFailures, "a_session_goes_on_after_a_failure"),
    Mutant(ReadsPromptsAsFormats, "any_prompt_gives_a_turn_that_ends"),
    Mutant(WritesTheHostsEvents, "only_types_for_backends_are_used"),
    Mutant(EndsToolsItNeverBegan, "tool_calls_are_paired"),
    Mutant(StreamsHalfCharacters, "streamed_text_is_text"),
    Mutant(WritesPythonForJson, "json_fields_hold_json"),
    Mutant(CountsBackwards, "usage_counts_from_zero"),
    Mutant(AnswersEmpty, "the_answer_is_the_results_text_or_what_was_streamed"),
    Mutant(IgnoresCancellation, "a_cancelled_turn_stops"),
    Mutant(IgnoresClosing, "a_turn_that_is_left_stops"),
    Mutant(LeavesTasks, "cancellations_leave_no_task"),
    Mutant(LeavesTasks, "interrupts_and_cancellations_leave_no_task"),
    Mutant(ConfirmsNoInterrupt, "an_interrupt_is_confirmed"),
    Mutant(InterruptsEverybody, "an_interrupt_of_an_unknown_turn_is_harmless"),
    Mutant(MixesSessions, "two_sessions_do_not_mix"),
    Mutant(TakesOneTurnAtATime, "many_turns_run_at_once"),
    Mutant(ChangesItsRequest, "a_turn_changes_no_message_it_is_given"),
    Mutant(SpendsSessions, "a_turn_may_be_given_the_session_from_before_the_last_one"),
    Mutant(AcceptsLate, "a_session_is_accepted_once_and_first"),
    Mutant(StartsAnew, "a_repeated_start_returns_the_same_session"),
    Mutant(ResumesAnything, "resuming_what_nobody_gave_harms_nobody"),
    Mutant(ResumesAnything, "resuming_keeps_the_name_of_the_conversation"),
    Mutant(RefusesToReleaseWhatItDoesNotKnow, "terminating_an_unknown_session_is_ok"),
    Mutant(FoldsTwice, "update_session_is_pure"),
    Mutant(DropsCheckpoints, "checkpoint_session_is_pure"),
    Mutant(ForgetsItsName, "update_session_keeps_the_name_of_the_conversation"),
    Mutant(AsksInPython, "what_is_asked_can_be_decided"),
    Mutant(AsksInPython, "a_paused_turn_says_what_it_waits_for"),
    Mutant(AsksTwiceUnderOneName, "a_paused_turn_says_what_it_waits_for"),
    Mutant(AsksForNothing, "a_paused_turn_says_what_it_waits_for"),
    Mutant(TakesExpiryForACrash, "a_turn_goes_on_with_any_decision"),
    Mutant(WaitsForPeopleAlone, "a_turn_that_waits_for_people_can_be_stopped"),
    Mutant(AsksAgainAndAgain, "a_paused_turn_is_taken_up_with_any_decision"),
    Mutant(TakesDecisionsOut, "a_turn_that_is_taken_up_changes_no_message_it_is_given"),
    Mutant(TriesOnce, "a_further_attempt_is_a_turn_like_any_other"),
    Mutant(HidesACall, "the_capabilities_name_the_optional_calls"),
)
