"""What lies between a port and a socket: errors as statuses, endpoints, channels and servers.

The only module of the SDK's floors that knows gRPC statuses; everything above it raises and catches `TurndockError`.
"""

from turndock.endpoint import Endpoint as Endpoint
from turndock.endpoint import parse_endpoint as parse_endpoint
from turndock.wire.channel import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from turndock.wire.channel import PLUGIN_KEEPALIVE_MS as PLUGIN_KEEPALIVE_MS
from turndock.wire.channel import bind as bind
from turndock.wire.channel import connect as connect
from turndock.wire.channel import new_server as new_server
from turndock.wire.interceptor import ErrorInterceptor as ErrorInterceptor
from turndock.wire.metadata import AUTHORIZATION as AUTHORIZATION
from turndock.wire.metadata import CONNECTION as CONNECTION
from turndock.wire.metadata import SCOPE as SCOPE
from turndock.wire.metadata import bearer as bearer
from turndock.wire.metadata import decode_tenant as decode_tenant
from turndock.wire.metadata import encode_tenant as encode_tenant
from turndock.wire.metadata import find as find
from turndock.wire.naming import method_name as method_name
from turndock.wire.status import cut_text as cut_text
from turndock.wire.status import error_of as error_of
from turndock.wire.status import status_of as status_of
from turndock.wire.status import translated as translated
from turndock.wire.streams import close_stream as close_stream
from turndock.wire.tls import Tls as Tls
from turndock.wire.tls import server_credentials as server_credentials
