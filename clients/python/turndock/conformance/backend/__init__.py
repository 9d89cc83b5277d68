"""The cases of `Backend`. A backend's author supplies the `Prompts` by which they make it do what they are about."""

from turndock.conformance.backend import abilities as abilities
from turndock.conformance.backend import approvals as approvals
from turndock.conformance.backend import concurrency as concurrency
from turndock.conformance.backend import folding as folding
from turndock.conformance.backend import outputs as outputs
from turndock.conformance.backend import sessions as sessions
from turndock.conformance.backend import stopping as stopping
from turndock.conformance.backend import turns as turns
from turndock.conformance.backend.suite import SUITE as SUITE
from turndock.conformance.backend.suite import Fixture as Fixture
from turndock.conformance.backend.suite import Prompt as Prompt
from turndock.conformance.backend.suite import Prompts as Prompts
from turndock.conformance.backend.suite import skips as skips
