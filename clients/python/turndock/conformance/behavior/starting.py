"""InitAgent: an agent's first state."""

from __future__ import annotations

from turndock import jsontext
from turndock.conformance.behavior.suite import Agent, Fixture, case, check_state
from turndock.conformance.claims import ContractBroken, copied, equal
from turndock.errors import TurndockError


@case("InitAgent")
async def a_first_state_is_json(fixture: Fixture) -> None:
    """InitAgent answers with a state that a host keeps, or with none."""
    answer = await Agent(fixture).init()
    if answer.HasField("state_json"):
        check_state(answer.state_json)


@case("InitAgent")
async def a_backend_configuration_is_an_object(fixture: Fixture) -> None:
    """A backend configuration in the answer is a JSON object."""
    answer = await Agent(fixture).init()
    try:
        jsontext.check_object(answer.backend_config_json, "backend_config_json")
    except TurndockError as error:
        raise ContractBroken(f"The backend's configuration must be a JSON object: {error.message}") from None


@case("InitAgent", "Idempotence")
async def a_start_that_is_repeated_is_answered_alike(fixture: Fixture) -> None:
    """The same InitAgent again, after its answer was lost, is answered as the first time."""
    request = Agent(fixture).init_request()
    first = await fixture.answered("InitAgent", fixture.behavior.init_agent(copied(request)))
    again = await fixture.answered("InitAgent", fixture.behavior.init_agent(copied(request)))
    equal(again, first, "A repeated InitAgent must be answered alike.")


@case("InitAgent", "State")
async def an_agent_goes_on_from_the_state_it_left(fixture: Fixture) -> None:
    """An agent that is started again from its saved state takes its next turn."""
    agent = await fixture.start()
    await agent.respond(1)
    await agent.init(restored=agent.state_json)
    check_state(agent.state_json)
    await agent.respond(2)
