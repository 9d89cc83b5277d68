"""What a host shows of itself, and what it never shows."""

from turndock_server.observability.logs import configure as configure
from turndock_server.observability.redaction import Redactor as Redactor
