"""Retention and health: what every store's Maintenance decides by, and how it goes about it."""

from turndock_server.stores.maintenance.port import StoreMaintenance as StoreMaintenance
