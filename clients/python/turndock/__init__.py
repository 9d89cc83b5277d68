"""The Turndock SDK: client, plug-in side and conformance kit."""
