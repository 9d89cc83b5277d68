"""Every port behind gRPC, and `serve`, with which a plug-in's process begins and ends.

await serve(name="echo", version="1.0", backend=EchoBackend())
"""

from turndock.serving.backend import add_backend as add_backend
from turndock.serving.contracts import Ports as Ports
from turndock.serving.contracts import Probe as Probe
from turndock.serving.contracts import add_agent_persistence as add_agent_persistence
from turndock.serving.contracts import add_artifact_store as add_artifact_store
from turndock.serving.contracts import add_behavior as add_behavior
from turndock.serving.contracts import add_maintenance as add_maintenance
from turndock.serving.contracts import add_plugin as add_plugin
from turndock.serving.contracts import add_query as add_query
from turndock.serving.contracts import add_session_store as add_session_store
from turndock.serving.contracts import capabilities_of as capabilities_of
from turndock.serving.handlers import add_port as add_port
from turndock.serving.process import ENDPOINT_VARIABLE as ENDPOINT_VARIABLE
from turndock.serving.process import PARENT_VARIABLE as PARENT_VARIABLE
from turndock.serving.process import serve as serve
