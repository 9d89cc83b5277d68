"""What a host is told before it starts: `turndock.toml` and environment variables, checked and with defaults.

`load` reads them; `Settings()` is a host with nothing but defaults. Imports neither grpc nor sqlalchemy.
"""

from turndock_server.config.errors import ConfigError as ConfigError
from turndock_server.config.errors import Fault as Fault
from turndock_server.config.loading import find_file as find_file
from turndock_server.config.loading import load as load
from turndock_server.config.retention import MaintenanceSettings as MaintenanceSettings
from turndock_server.config.security import CertificateSettings as CertificateSettings
from turndock_server.config.security import PluginTlsSettings as PluginTlsSettings
from turndock_server.config.settings import ArtifactSettings as ArtifactSettings
from turndock_server.config.settings import BackendSettings as BackendSettings
from turndock_server.config.settings import BehaviorSettings as BehaviorSettings
from turndock_server.config.settings import LimitSettings as LimitSettings
from turndock_server.config.settings import LogSettings as LogSettings
from turndock_server.config.settings import PluginSettings as PluginSettings
from turndock_server.config.settings import RedactionSettings as RedactionSettings
from turndock_server.config.settings import ServerSettings as ServerSettings
from turndock_server.config.settings import Settings as Settings
from turndock_server.config.settings import StoreSettings as StoreSettings
from turndock_server.config.values import Reference as Reference
from turndock_server.config.values import Section as Section
from turndock_server.config.values import Value as Value
