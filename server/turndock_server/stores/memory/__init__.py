"""A SessionStore that keeps everything in memory: for tests, demos and hosts that need no durability."""

from turndock_server.stores.memory.maintenance import MemoryMaintenance as MemoryMaintenance
from turndock_server.stores.memory.store import MemorySessionStore as MemorySessionStore
