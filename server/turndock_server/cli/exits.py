"""Exit codes: what a script may tell apart."""

import enum


class Exit(enum.IntEnum):
    """How a command ended."""

    OK = 0
    """It did what it was asked to."""
    FAILED = 1
    """The server refused or could not do it, or `doctor` found errors."""
    USAGE = 2
    """The arguments or the configuration are wrong; nothing was tried."""
    TURN_FAILED = 3
    """The prompt was taken, but its turn did not succeed."""
    UNREACHABLE = 4
    """No server answers at the address."""
    INTERRUPTED = 130
    """Ctrl-C."""
