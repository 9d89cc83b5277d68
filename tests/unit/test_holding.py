"""One holder at a time, known by its process id, and none when it is gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turndock_server.holding import Held, check_free, hold


def test_a_second_holder_is_told_who_has_it(tmp_path: Path) -> None:
    lock = hold(tmp_path / "x.lock")
    with pytest.raises(Held, match=f"held by process {os.getpid()}") as caught:
        hold(tmp_path / "x.lock")
    assert caught.value.pid == os.getpid()
    with pytest.raises(Held):
        check_free(tmp_path / "x.lock")
    lock.release()
    check_free(tmp_path / "x.lock")
    hold(tmp_path / "x.lock").release()


def test_a_holder_that_is_killed_holds_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from turndock_server.holding import hold\n"
        "lock = hold(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "x.lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Held) as caught:
            hold(tmp_path / "x.lock")
        assert caught.value.pid == holder.pid
        holder.kill()
        holder.wait()
    hold(tmp_path / "x.lock").release()


def test_a_holder_that_does_not_say_who_it_is_is_another_process(tmp_path: Path) -> None:
    lock = hold(tmp_path / "x.lock")
    (tmp_path / "x.lock").write_text("")
    with pytest.raises(Held, match="held by another process"):
        hold(tmp_path / "x.lock")
    lock.release()
