"""Measures Turndock against its targets: `make bench`."""
