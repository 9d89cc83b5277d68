"""Using a Turndock server: `Client` and `AgentHandle`, and `SyncClient` for code without an event loop."""

from turndock.client.agent import AgentHandle as AgentHandle
from turndock.client.agent import Busy as Busy
from turndock.client.answering import Asked as Asked
from turndock.client.answering import approve as approve
from turndock.client.answering import edit as edit
from turndock.client.answering import reject as reject
from turndock.client.blocking import SyncAgentHandle as SyncAgentHandle
from turndock.client.blocking import SyncClient as SyncClient
from turndock.client.blocking import SyncPromptStream as SyncPromptStream
from turndock.client.blocking import SyncWatch as SyncWatch
from turndock.client.blocking_maintenance import SyncMaintenance as SyncMaintenance
from turndock.client.blocking_query import SyncQuery as SyncQuery
from turndock.client.client import Client as Client
from turndock.client.host import DEFAULT_ENDPOINT as DEFAULT_ENDPOINT
from turndock.client.host import Retry as Retry
from turndock.client.outcome import TurnFailed as TurnFailed
from turndock.client.prompt import PromptStream as PromptStream
from turndock.client.streams import OnLost as OnLost
from turndock.client.streams import OnResumed as OnResumed
from turndock.client.watch import FrameWatch as FrameWatch
from turndock.client.watch import Watch as Watch
from turndock.wire import Tls as Tls
