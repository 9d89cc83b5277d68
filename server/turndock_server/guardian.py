"""Run as a program by `turndock_server.processes`: kills process groups when the process that started it is gone.

A parent that is killed cannot kill its children any more, and most programs do not notice that nobody listens. So the
parent tells this program, on its standard input, which groups it has (`+123`) and which have ended (`-123`). The
kernel closes that pipe however the parent goes; whatever groups are left then are killed.

It is a file of its own, without imports from Turndock, so that it starts in a few milliseconds and stays small.
"""

import os
import signal
import sys


def main() -> None:
    """Keep the list until the parent is gone, then kill what is on it."""
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue  # it ended together with the parent


if __name__ == "__main__":
    main()
