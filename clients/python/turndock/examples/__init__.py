"""Small programs to begin with: `python -m turndock.examples.<name> --help`."""
