"""What the guardian removes, and what it leaves alone."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from turndock_server import guardian, processes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a socket nobody listens at any more."""
    made = tmp_path / "turndock-x"
    made.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(made / "plugin.sock"))
    return made


def guarded(*lines: str) -> None:
    """Run the guardian as a process, told these lines, to its end."""
    program = [sys.executable, "-I", "-S", guardian.__file__]
    subprocess.run(program, input="".join(f"{line}\n" for line in lines), text=True, check=True)


def test_a_directory_of_sockets_goes_with_the_process_that_had_it(folder: Path) -> None:
    guarded(f"+{folder}")
    assert not folder.exists()


def test_a_directory_that_was_given_up_stays(folder: Path) -> None:
    guarded(f"+{folder}", f"-{folder}")
    assert folder.exists()


def test_a_directory_that_is_gone_is_no_matter(tmp_path: Path, folder: Path) -> None:
    guarded(f"+{tmp_path / 'never'}", f"+{folder}")
    assert not folder.exists()


def test_a_directory_with_anything_but_sockets_stays_with_it(folder: Path) -> None:
    (folder / "notes").write_text("mine")
    guarded(f"+{folder}")
    assert [path.name for path in folder.iterdir()] == ["notes"]


def test_a_link_is_not_followed(tmp_path: Path, folder: Path) -> None:
    link = tmp_path / "turndock-link"
    link.symlink_to(folder)
    guarded(f"+{link}")
    assert link.is_symlink()
    assert stat.S_ISSOCK((folder / "plugin.sock").stat().st_mode)
    inner = tmp_path / "turndock-y"
    inner.mkdir()
    (inner / "plugin.sock").symlink_to(folder / "plugin.sock")
    guarded(f"+{inner}")
    assert (inner / "plugin.sock").is_symlink()


def test_what_is_somebody_elses_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    guardian.remove(str(folder))
    assert (folder / "plugin.sock").exists()


def test_a_private_folder_is_this_users_alone_and_goes_when_it_is_told(tmp_path: Path) -> None:
    private = processes.private_folder("turndock-", within=str(tmp_path))
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert str(private) in processes._guardian._things
    (private / "plugin.sock").touch()
    processes.remove_folder(private)
    assert not private.exists()
    assert str(private) not in processes._guardian._things
