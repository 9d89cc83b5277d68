"""Fails when protos/ breaks what callers already build on.

The protos in the work tree are compared with
- the commit named by BREAKING_AGAINST, if it is set;
- on a branch: the commit where it left main;
- on main: the last release (tag v*), or the last commit as long as there is none.

Where there is nothing to compare with (no commit, no protos in it, a clone without the history) it says so and passes.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Finds the commit to compare with and lets buf compare."""
    base, why = find_base()
    if base is None:
        print(f"buf breaking: nothing to compare with: {why}.")
        return 0
    archive = subprocess.run(
        ["git", "archive", "--format=tar", base, "buf.yaml", "protos"],
        cwd=ROOT,
        check=False,
        capture_output=True,
    )
    if archive.returncode:
        print(f"buf breaking: nothing to compare with: no protos in {base[:12]} ({why}).")
        return 0
    print(f"buf breaking: against {base[:12]} ({why}).")
    buf = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")
    if buf is None:
        sys.exit("buf is not installed. Run: make venv")
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(directory, filter="data")
        return subprocess.run([buf, "breaking", "--against", directory], cwd=ROOT, check=False).returncode


def find_base() -> tuple[str | None, str]:
    """The commit to compare with and what it is, or None and why there is none."""
    if chosen := os.environ.get("BREAKING_AGAINST"):
        commit = git("rev-parse", "--verify", "--quiet", f"{chosen}^{{commit}}")
        if commit is None:
            sys.exit(f"BREAKING_AGAINST={chosen} is no commit here.")
        return commit, chosen
    head = git("rev-parse", "--verify", "--quiet", "HEAD")
    if head is None:
        return None, "there is no commit yet"
    if git("symbolic-ref", "--short", "HEAD") != "main":
        trunk = next(
            (name for name in ("origin/main", "main") if git("rev-parse", "--verify", "--quiet", name)), None
        )
        if trunk is None:
            return None, "this clone has no main branch (fetch it to compare)"
        fork = git("merge-base", "HEAD", trunk)
        if fork is None:
            return None, f"this clone holds no common ancestor with {trunk} (fetch more history to compare)"
        if fork != head:
            return fork, f"where this branch left {trunk}"
    release = git("describe", "--tags", "--abbrev=0", "--match", "v*")
    return (release, "the last release") if release else (head, "the last commit")


def git(*arguments: str) -> str | None:
    """What git answers, or None when it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
