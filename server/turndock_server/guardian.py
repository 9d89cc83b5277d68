"""Run as a program by `turndock_server.processes`: kills process groups when the process that started it is gone.

A parent that is killed cannot kill its children any more, and most programs do not notice that nobody listens. So the
parent tells this program, on its standard input, which groups it has (`+123`) and which have ended (`-123`). The
kernel closes that pipe however the parent goes; whatever groups are left then get SIGTERM, and SIGKILL a second later.

It is a file of its own, without imports from Turndock, so that it starts in a few milliseconds and stays small.
"""

import os
import signal
import sys
import time

GRACE_S = 1.0


def main() -> None:
    """Keep the list until the parent is gone, then kill what is on it."""
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    if groups:
        send(groups, signal.SIGTERM)
        time.sleep(GRACE_S)
        send(groups, signal.SIGKILL)


def send(groups: set[int], number: signal.Signals) -> None:
    """Signal every group that still exists."""
    for group in groups:
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            continue  # it has ended by itself


if __name__ == "__main__":
    main()
