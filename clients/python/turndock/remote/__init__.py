"""Every port over a channel: what is here behaves as the port in this process does, and may be out of reach besides.

A call that does not reach the other side raises `TurndockError` (PLUGIN_UNAVAILABLE); one without an answer in time
TIMEOUT. An optional call that the other side does not have raises CAPABILITY_NOT_SUPPORTED and is not made again.
"""

from turndock.remote.backend import MULTIPLEXED as MULTIPLEXED
from turndock.remote.backend import RemoteBackend as RemoteBackend
from turndock.remote.behavior import RemoteBehavior as RemoteBehavior
from turndock.remote.calls import DEFAULT_TIMEOUT_S as DEFAULT_TIMEOUT_S
from turndock.remote.calls import POLL_SLACK_S as POLL_SLACK_S
from turndock.remote.calls import Remote as Remote
from turndock.remote.calls import Stream as Stream
from turndock.remote.calls import Unary as Unary
from turndock.remote.calls import Upload as Upload
from turndock.remote.plugin import RemotePlugin as RemotePlugin
from turndock.remote.stores import RemoteAgentPersistence as RemoteAgentPersistence
from turndock.remote.stores import RemoteArtifactStore as RemoteArtifactStore
from turndock.remote.stores import RemoteMailboxStore as RemoteMailboxStore
from turndock.remote.stores import RemoteMaintenance as RemoteMaintenance
from turndock.remote.stores import RemotePlainSessionStore as RemotePlainSessionStore
from turndock.remote.stores import RemoteQuery as RemoteQuery
from turndock.remote.stores import RemoteSessionStore as RemoteSessionStore
from turndock.remote.stores import RemoteWatchedStore as RemoteWatchedStore
from turndock.remote.stores import remote_session_store as remote_session_store
