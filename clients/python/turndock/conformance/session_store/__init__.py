"""The cases of `SessionStore`, its mailbox and its stream of events included."""

from turndock.conformance.session_store import abilities as abilities
from turndock.conformance.session_store import concurrency as concurrency
from turndock.conformance.session_store import deletion as deletion
from turndock.conformance.session_store import events as events
from turndock.conformance.session_store import fidelity as fidelity
from turndock.conformance.session_store import flush as flush
from turndock.conformance.session_store import isolation as isolation
from turndock.conformance.session_store import long_poll as long_poll
from turndock.conformance.session_store import mailbox as mailbox
from turndock.conformance.session_store import ownership as ownership
from turndock.conformance.session_store import reads as reads
from turndock.conformance.session_store import retries as retries
from turndock.conformance.session_store import runs as runs
from turndock.conformance.session_store import sessions as sessions
from turndock.conformance.session_store import watch as watch
from turndock.conformance.session_store.suite import LONG_POLL as LONG_POLL
from turndock.conformance.session_store.suite import MAILBOX as MAILBOX
from turndock.conformance.session_store.suite import SUITE as SUITE
from turndock.conformance.session_store.suite import WATCH_EVENTS as WATCH_EVENTS
from turndock.conformance.session_store.suite import Fixture as Fixture
