"""Approvals: what people are asked, that a turn goes on with any decision, and that a parked one is taken up."""

from __future__ import annotations

from collections.abc import Sequence

from turndock import jsontext
from turndock.backend.v1 import Paused
from turndock.conformance.backend.suite import ASKING, PARKING, Fixture, case
from turndock.conformance.backend.turn import Turn, decided
from turndock.conformance.claims import ContractBroken, copied, equal, holds
from turndock.errors import TurndockError
from turndock.types.v1 import ApprovalDecision, ToolApprovalRequested

ANSWERS = (
    ApprovalDecision.APPROVAL_DECISION_APPROVE,
    ApprovalDecision.APPROVAL_DECISION_EDIT,
    ApprovalDecision.APPROVAL_DECISION_REJECT,
)
EXPIRED = ApprovalDecision.APPROVAL_DECISION_EXPIRED


@case("Approval", "H-01", prompts=[ASKING])
async def what_is_asked_can_be_decided(fixture: Fixture) -> None:
    """A request has arguments that are JSON, decisions a person may give, and an id of its own within the turn."""
    talk = await fixture.start(fixture.prompt(ASKING))
    async with talk.open() as turn:
        await turn.end()
    holds(turn.requests, "A turn of an `asking` prompt must ask for an approval.")
    check_requests(turn.requests)


@case("Approval", "H-01", prompts=[ASKING])
async def a_turn_goes_on_with_any_decision(fixture: Fixture) -> None:
    """Approved, edited, rejected or expired: the turn goes on to its one end."""
    for decision in (*await _allowed(fixture, ASKING), EXPIRED):
        talk = await fixture.start(fixture.prompt(ASKING))
        async with talk.deciding(decision) as turn:
            await turn.end()
        turn.result(f"A turn whose request was answered with {_name(decision)}")


@case("Approval", "Cancellation", prompts=[ASKING])
async def a_turn_that_waits_for_people_can_be_stopped(fixture: Fixture) -> None:
    """Cancelling the task that pulls a turn ends it also while it waits, and its session takes another prompt."""
    talk = await fixture.start(fixture.prompt(ASKING))
    async with talk.deciding(None) as turn:
        await turn.asked()
        await turn.cancel()
    await talk.ask_on()


@case("Approval", "H-01", prompts=[PARKING])
async def a_paused_turn_says_what_it_waits_for(fixture: Fixture) -> None:
    """`paused` is a turn's one terminal, and names at least one request that can be decided."""
    talk = await fixture.start(fixture.prompt(PARKING))
    turn = await talk.ask()
    turn.check_one_terminal("The turn of a `parking` prompt")
    check_requests(_paused(turn).approvals)


@case("Approval", "H-02", prompts=[PARKING])
async def a_paused_turn_is_taken_up_with_any_decision(fixture: Fixture) -> None:
    """Prompted again with `resume`, the turn goes on to its one end, whatever was decided."""
    for decision in (*await _allowed(fixture, PARKING), EXPIRED):
        talk = await fixture.start(fixture.prompt(PARKING))
        parked = await talk.ask()
        answers = [decided(request, decision) for request in _paused(parked).approvals]
        async with talk.deciding(decision, talk.resuming(answers, parked)) as turn:
            await turn.end()
        turn.result(f"A turn that was taken up with {_name(decision)}")
        talk.session = await talk.folded(turn)
        await talk.ask_on()


@case("Approval", "HandsOff", prompts=[PARKING])
async def a_turn_that_is_taken_up_changes_no_message_it_is_given(fixture: Fixture) -> None:
    """The request with `resume` is the same after the turn as before."""
    talk = await fixture.start(fixture.prompt(PARKING))
    parked = await talk.ask()
    answers = [decided(request, EXPIRED) for request in _paused(parked).approvals]
    request = talk.resuming(answers, parked)
    given = copied(request)
    async with talk.deciding(EXPIRED, request) as turn:
        await turn.end()
    equal(request, given, "A backend must not change the PromptRequest it is given.")


@case("Prompt", "Attempts")
async def a_further_attempt_is_a_turn_like_any_other(fixture: Fixture) -> None:
    """A run whose host was lost is tried again with the session from before it, and `attempt` 2."""
    talk = await fixture.start()
    lost = talk.request(talk.first)
    async with talk.deciding(EXPIRED, lost) as turn:
        await turn.spoken()
    again = talk.request(talk.first, attempt=2)
    equal(again.run_id, lost.run_id, "It is the same run.")
    async with talk.deciding(EXPIRED, again) as turn:
        await turn.end()
    turn.result("A further attempt at an `answering` prompt")


def check_requests(requests: Sequence[ToolApprovalRequested]) -> None:
    """Fail unless people can decide on these, and a host can tell them apart."""
    holds(requests, "A turn that pauses must say what it waits for; this one names no request.")
    for request in requests:
        try:
            jsontext.check(request.arguments_json, "arguments_json")
        except TurndockError as error:
            holds(False, f"The arguments of a request must be JSON; these are not: {error.message}")
        for decision in request.allowed_decisions:
            holds(
                decision in ANSWERS,
                f"A person cannot answer with {_name(decision)}; a request must not allow it.",
            )
        holds(
            request.tool_name or request.message,
            "A request must say what it is about: `tool_name` or `message`.",
        )
    ids = [request.approval_id for request in requests if request.approval_id]
    equal(len(set(ids)), len(ids), "Requests of one turn must have ids of their own.")


async def _allowed(fixture: Fixture, prompt: str) -> Sequence[ApprovalDecision.ValueType]:
    """What every request of that prompt's turn may be answered with."""
    talk = await fixture.start(fixture.prompt(prompt))
    turn = await talk.ask()
    requests = [*turn.requests]
    if turn.outputs and isinstance(turn.outputs[-1], Paused):
        requests += turn.outputs[-1].approvals
    return [
        decision
        for decision in ANSWERS
        if all(decision in (request.allowed_decisions or ANSWERS) for request in requests)
    ]


def _paused(turn: Turn) -> Paused:
    terminal = turn.outputs[-1] if turn.outputs else None
    if isinstance(terminal, Paused):
        return terminal
    raise ContractBroken(
        f"The turn of a `parking` prompt must end with Paused, not {type(terminal).__name__}."
    )


def _name(decision: ApprovalDecision.ValueType) -> str:
    if decision not in ApprovalDecision.values():
        return str(int(decision))
    return ApprovalDecision.Name(decision).removeprefix("APPROVAL_DECISION_").lower()
