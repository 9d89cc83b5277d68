"""The cases of `Behavior`. A behavior's author supplies the `Story` that its agents are taken through."""

from turndock.conformance.behavior import abilities as abilities
from turndock.conformance.behavior import concurrency as concurrency
from turndock.conformance.behavior import decisions as decisions
from turndock.conformance.behavior import hooks as hooks
from turndock.conformance.behavior import starting as starting
from turndock.conformance.behavior import states as states
from turndock.conformance.behavior.suite import SUITE as SUITE
from turndock.conformance.behavior.suite import Fixture as Fixture
from turndock.conformance.behavior.suite import Story as Story
