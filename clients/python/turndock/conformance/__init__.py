"""The conformance kit: each contract as a suite of cases that any implementation can be put through.

A case is one sentence of a contract and the code that checks it. `session_store.SUITE` holds those of `SessionStore`,
`artifact_store.SUITE` those of `ArtifactStore`, `agent_persistence.SUITE` those of `AgentPersistence`, `backend.SUITE`
those of `Backend`, `behavior.SUITE` those of `Behavior`; `Suite.run` puts an implementation through them, in process or
behind `turndock.remote`, and returns a `Report`.
"""

from turndock.conformance.cases import Case as Case
from turndock.conformance.cases import Outcome as Outcome
from turndock.conformance.cases import Report as Report
from turndock.conformance.cases import Result as Result
from turndock.conformance.cases import Suite as Suite
from turndock.conformance.claims import ContractBroken as ContractBroken
