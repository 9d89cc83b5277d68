"""Docked plug-ins: processes that implement contracts, run by themselves or by this server."""

from turndock_server.plugins.dock import Dock as Dock
from turndock_server.plugins.static import StaticPlugin as StaticPlugin
from turndock_server.plugins.supervised import SupervisedPlugin as SupervisedPlugin
