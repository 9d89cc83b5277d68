"""The cases of `Query`, over what a `SessionStore` keeps."""

from turndock.conformance.query import costs as costs
from turndock.conformance.query import cursors as cursors
from turndock.conformance.query import events as events
from turndock.conformance.query import export as export
from turndock.conformance.query import isolation as isolation
from turndock.conformance.query import paging as paging
from turndock.conformance.query import runs as runs
from turndock.conformance.query import sessions as sessions
from turndock.conformance.query import usage as usage
from turndock.conformance.query.suite import ARTIFACTS as ARTIFACTS
from turndock.conformance.query.suite import SUITE as SUITE
from turndock.conformance.query.suite import Fixture as Fixture
