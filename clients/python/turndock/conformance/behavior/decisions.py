"""HandleResponse, HandleError and HandleEvent: what an agent does next."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from turndock.conformance.behavior.suite import Fixture, case, check_decision
from turndock.conformance.claims import copied, equal
from turndock.errors import TurndockError
from turndock.types.v1 import Failure, RunStatus

STRANGE_PAYLOADS = (
    "null",
    "0",
    "-1.5e300",
    "9007199254740993",
    '"\\u00e9\\ud83d\\ude00"',
    "[]",
    '{"":{"a":[1]}}',
)
FAILURES = {
    "interrupted": RunStatus.RUN_STATUS_CANCELLED,
    "timeout": RunStatus.RUN_STATUS_TIMEOUT,
    "task_crashed": RunStatus.RUN_STATUS_FAILED,
    "backend_lost": RunStatus.RUN_STATUS_FAILED,
    "host_lost": RunStatus.RUN_STATUS_FAILED,
    "no_terminal_event": RunStatus.RUN_STATUS_FAILED,
    "conformance_unheard_of": RunStatus.RUN_STATUS_FAILED,
}


@case("HandleResponse", "M-07", "M-09")
async def a_success_is_decided_on(fixture: Fixture) -> None:
    """HandleResponse answers each turn of the story with a decision that a host can carry out."""
    agent = await fixture.start()
    for number in range(1, len(fixture.story.answers) + 1):
        check_decision((await agent.respond(number)).decision)


@case("HandleError", "M-08", needs=["handle_error"])
async def a_failure_is_decided_on(fixture: Fixture) -> None:
    """HandleError answers the story's failure with a decision that a host can carry out."""
    agent = await fixture.start()
    check_decision((await agent.fail()).decision)


@case("HandleError", "M-18", "M-20", "M-21", needs=["handle_error"])
async def every_failure_of_a_host_is_decided_on(fixture: Fixture) -> None:
    """HandleError decides on every way in which a host ends a turn, and on reasons it has never heard of."""
    for reason, status in FAILURES.items():
        agent = await fixture.start()
        check_decision((await agent.fail(Failure(reason=reason), status)).decision)


@case("HandleEvent", "M-11", needs=["handle_event"])
async def a_notification_is_decided_on(fixture: Fixture) -> None:
    """HandleEvent answers the story's notifications with decisions that a host can carry out."""
    agent = await fixture.start()
    for payload in fixture.story.notifications:
        check_decision((await agent.hear(payload)).decision)


@case("HandleEvent", "M-17", needs=["handle_event"])
async def a_strange_notification_spoils_nothing(fixture: Fixture) -> None:
    """Whatever JSON a notification holds, it is taken or refused, and the next one is handled."""
    agent = await fixture.start()
    for payload in STRANGE_PAYLOADS:
        with suppress(TurndockError):
            check_decision((await agent.hear(payload)).decision)
    await agent.hear(fixture.story.notifications[0])


@case("HandleResponse", "Idempotence")
async def a_decision_that_is_asked_for_again_is_the_same(fixture: Fixture) -> None:
    """The same HandleResponse again, after its answer was lost, is answered as the first time."""
    agent = await fixture.start()
    request = agent.response_request(1)
    first = await fixture.answered("HandleResponse", fixture.behavior.handle_response(copied(request)))
    again = await fixture.answered("HandleResponse", fixture.behavior.handle_response(copied(request)))
    equal(again, first, "A repeated HandleResponse must be answered alike.")


@case("HandleResponse", "Cancellation")
async def a_call_that_is_given_up_spoils_nothing(fixture: Fixture) -> None:
    """A caller that gives up in the middle of a call can make the same call again."""
    agent = await fixture.start()
    request = agent.response_request(1)
    expected = await fixture.answered("HandleResponse", fixture.behavior.handle_response(copied(request)))
    given_up = asyncio.ensure_future(fixture.behavior.handle_response(copied(request)))
    await asyncio.sleep(0)
    given_up.cancel()
    with suppress(asyncio.CancelledError):
        await given_up
    again = await fixture.answered("HandleResponse", fixture.behavior.handle_response(copied(request)))
    equal(again, expected, "A call that was given up must be answered like any other when it is made again.")
