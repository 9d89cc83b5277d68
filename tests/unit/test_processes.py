"""Children end, with everything they started."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from support.programs import gone, python
from turndock_server import processes
from turndock_server.processes import Child, TooLong, base_environment, read_lines

FAMILY = """
    import subprocess, sys
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", %r])
    print(child.pid, flush=True)
    %s
"""
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
)


async def start(argv: list[str]) -> Child:
    return await Child.start(argv, environment=base_environment())


async def family(folder: Path, parent: str) -> tuple[Child, int]:
    """A running program and the number of a grandchild that ignores SIGTERM."""
    child = await start(python(folder, FAMILY % (STUBBORN, parent)))
    lines = {await child.stdout.readline(), await child.stdout.readline()}
    lines.remove(b"up\n")
    return child, int(lines.pop())


async def test_a_program_runs_and_its_output_and_code_are_seen(tmp_path: Path) -> None:
    source = (
        "import sys; print(sys.stdin.readline().upper(), end=''); print('oh', file=sys.stderr); sys.exit(3)"
    )
    child = await start(python(tmp_path, source))
    assert child.returncode is None
    child.write(b"hello\n")
    assert await child.stdout.read() == b"HELLO\n"
    assert await child.stderr.read() == b"oh\n"
    assert await child.wait() == 3
    assert await child.stop() == 3


async def test_a_grandchild_that_ignores_sigterm_dies_with_the_group(tmp_path: Path) -> None:
    child, grandchild = await family(tmp_path, "sys.stdin.read()")
    assert await child.stop() == -signal.SIGTERM
    await gone(grandchild)
    await gone(child.pid)


async def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    child = await start(python(tmp_path, STUBBORN))
    assert await child.stdout.readline() == b"up\n"
    assert await child.stop(grace=0.05) == -signal.SIGKILL


async def test_a_cancelled_stop_kills_at_once(tmp_path: Path) -> None:
    child = await start(python(tmp_path, STUBBORN))
    assert await child.stdout.readline() == b"up\n"
    stopping = asyncio.ensure_future(child.stop(grace=60))
    await asyncio.wait([stopping], timeout=0.01)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert await child.wait() == -signal.SIGKILL


async def test_the_output_ends_with_the_program_although_a_grandchild_holds_the_pipe(tmp_path: Path) -> None:
    child, grandchild = await family(tmp_path, "sys.stdin.readline(); print('last words', flush=True)")
    child.write(b"speak\n")
    assert await child.stdout.read() == b"last words\n"
    assert await child.wait() == 0
    await gone(grandchild)


async def test_a_grandchild_in_a_session_of_its_own_does_not_hold_the_pipes(tmp_path: Path) -> None:
    source = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
        print(child.pid)
    """
    child = await start(python(tmp_path, source))
    escaped = int(await child.stdout.read())
    assert await child.stderr.read() == b""
    assert await child.wait() == 0
    os.kill(escaped, signal.SIGKILL)


async def test_what_nobody_reads_makes_the_program_wait_and_not_us_grow(tmp_path: Path) -> None:
    source = """
        import os, select, sys
        os.set_blocking(1, False)
        written = 0
        while select.select([], [1], [], 0.2)[1]:
            written += os.write(1, b"x" * 4096)
        print(written, file=sys.stderr)
    """
    child = await start(python(tmp_path, source))
    written = int(await child.stderr.readline())
    assert 1 << 16 < written < 1 << 19
    assert len(await child.stdout.read()) == written
    assert await child.wait() == 0


async def test_a_program_that_does_not_read_its_input_holds_nobody_up(tmp_path: Path) -> None:
    child = await start(python(tmp_path, "import signal; signal.pause()"))
    child.write(b"x" * (1 << 20))
    child.close_stdin()
    child.write(b"too late")
    assert await child.stop() == -signal.SIGTERM
    child.write(b"far too late")
    child.close_stdin()


async def test_a_program_that_closed_its_input_can_be_written_to(tmp_path: Path) -> None:
    child = await start(
        python(tmp_path, "import os; os.close(0); print('closed', flush=True); os.read(9, 1)")
    )
    assert await child.stdout.readline() == b"closed\n"
    for _ in range(20):
        child.write(b"x" * 70_000)
    assert await child.wait() == 1


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(20):
        starting = asyncio.ensure_future(start(python(tmp_path, STUBBORN)))
        await asyncio.wait([starting], timeout=0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert processes._guardian._things == set()


async def test_a_program_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        await start(["/no/such/program"])


async def test_children_inherit_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "secret")
    child = await start(python(tmp_path, "import os; print('API_KEY' in os.environ, 'PATH' in os.environ)"))
    assert await child.stdout.read() == b"False True\n"
    await child.stop()


async def test_without_pidfds_children_end_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise PermissionError(pid)

    monkeypatch.setattr(os, "pidfd_open", refuse)
    child, grandchild = await family(tmp_path, "sys.stdin.read()")
    monkeypatch.undo()
    assert await child.stop() == -signal.SIGTERM
    await gone(grandchild)


async def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    source = f"""
        import asyncio, sys
        sys.path[:0] = {sys.path!r}
        from turndock_server.processes import Child, base_environment

        async def main():
            child = await Child.start(
                [sys.executable, "-I", "-S", "-c", {STUBBORN!r}], environment=base_environment()
            )
            await child.stdout.readline()
            print(child.pid, flush=True)
            await child.wait()

        asyncio.run(main())
    """
    parent = await start(python(tmp_path, source))
    grandchild = int(await parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    assert await parent.wait() == -signal.SIGKILL
    await gone(grandchild)


async def test_the_guardian_is_replaced_when_somebody_kills_it(tmp_path: Path) -> None:
    first = await start(python(tmp_path, "import signal; signal.pause()"))
    guardian = processes._guardian._process
    assert guardian is not None
    guardian.kill()
    guardian.wait()
    second = await start(python(tmp_path, "import signal; signal.pause()"))
    assert processes._guardian._process is not guardian
    await first.stop()
    await second.stop()
    assert processes._guardian._things == set()


class Pieces(asyncio.StreamReader):
    """Output that arrives in these pieces, one at a time."""

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__()
        self._pieces = iter(pieces)

    async def read(self, n: int = -1) -> bytes:
        return next(self._pieces, b"")


@pytest.mark.parametrize(
    ("pieces", "batches"),
    [
        ([b"a\nb\n", b"c\n"], [[b"a", b"b"], [b"c"]]),
        ([b"a", b"b\n\nc"], [[b"ab", b""], [b"c"]]),
        ([b"12345\n123456\n1\n"], [[b"12345", TooLong(6, b"12345"), b"1"]]),
        ([b"1234", b"5678", b"9\nx\n"], [[TooLong(9, b"12345"), b"x"]]),
        ([b"123456"], [[TooLong(6, b"12345")]]),
        ([], []),
    ],
)
async def test_output_is_cut_to_lines(pieces: list[bytes], batches: list[list[bytes | TooLong]]) -> None:
    assert [batch async for batch in read_lines(Pieces(pieces), 5)] == batches
