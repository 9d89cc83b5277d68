"""The cases of `Maintenance`."""

from turndock.conformance.maintenance import archiving as archiving
from turndock.conformance.maintenance import expiry as expiry
from turndock.conformance.maintenance import health as health
from turndock.conformance.maintenance import orphans as orphans
from turndock.conformance.maintenance import policies as policies
from turndock.conformance.maintenance import pruning as pruning
from turndock.conformance.maintenance import reports as reports
from turndock.conformance.maintenance.suite import MAILBOX as MAILBOX
from turndock.conformance.maintenance.suite import SUITE as SUITE
from turndock.conformance.maintenance.suite import Fixture as Fixture
