"""Run as a program by `turndock_server.processes`: clears up behind the process that started it when that is gone.

A parent that is killed cannot kill its children any more, and most programs do not notice that nobody listens. So the
parent tells this program, on its standard input, what it has: process groups (`+123`) and directories of sockets
(`+/tmp/turndock-x`); and what of it has ended (`-123`). The kernel closes that pipe however the parent goes. Whatever
groups are left then get SIGTERM, and SIGKILL a second later. Then the directories go: a directory that is this user's
own, with the sockets in it, and nothing else.

It is a file of its own, without imports from Turndock, so that it starts in a few milliseconds and stays small.
"""

import contextlib
import os
import signal
import stat
import sys
import time

GRACE_S = 1.0


def main() -> None:
    """Keep the list until the parent is gone, then clear up what is on it."""
    left: set[str] = set()
    for told in sys.stdin.buffer:
        line = os.fsdecode(told)
        thing = line[1:-1]
        if line.startswith("+"):
            left.add(thing)
        else:
            left.discard(thing)
    groups = {int(thing) for thing in left if not thing.startswith("/")}
    if groups:
        send(groups, signal.SIGTERM)
        time.sleep(GRACE_S)
        send(groups, signal.SIGKILL)
    for thing in left:
        if thing.startswith("/"):
            with contextlib.suppress(
                OSError
            ):  # it is gone, or somebody else's: in both cases not ours to remove
                remove(thing)


def send(groups: set[int], number: signal.Signals) -> None:
    """Signal every group that still exists."""
    for group in groups:
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            continue  # it has ended by itself


def remove(folder: str) -> None:
    """Remove a directory of sockets, if it is this user's own and holds nothing else. Follows no symbolic link."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(directory).st_uid != os.getuid():
            return
        for name in os.listdir(directory):
            if stat.S_ISSOCK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(folder)  # fails if anything is left in it, and on a link that has taken its place


if __name__ == "__main__":
    main()
