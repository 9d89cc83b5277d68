"""The cases of `ArtifactStore`."""

from turndock.conformance.artifact_store import contents as contents
from turndock.conformance.artifact_store import keys as keys
from turndock.conformance.artifact_store import listing as listing
from turndock.conformance.artifact_store import refusals as refusals
from turndock.conformance.artifact_store import retries as retries
from turndock.conformance.artifact_store import uploads as uploads
from turndock.conformance.artifact_store.suite import SUITE as SUITE
from turndock.conformance.artifact_store.suite import Fixture as Fixture
