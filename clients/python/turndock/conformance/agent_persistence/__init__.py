"""The cases of `AgentPersistence`."""

from turndock.conformance.agent_persistence import flag as flag
from turndock.conformance.agent_persistence import keys as keys
from turndock.conformance.agent_persistence import refusals as refusals
from turndock.conformance.agent_persistence import retries as retries
from turndock.conformance.agent_persistence import saving as saving
from turndock.conformance.agent_persistence.suite import SUITE as SUITE
from turndock.conformance.agent_persistence.suite import Fixture as Fixture
