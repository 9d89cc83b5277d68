"""The log: a record is a line, its facts are fields, its secrets are not there."""

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from turndock_server.observability import Redactor, configure

log = logging.getLogger("turndock_server.core.host")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Every test leaves logging as it found it."""
    root = logging.getLogger()
    names = ("turndock", "turndock_server")
    before = root.handlers[:], root.level, [logging.getLogger(name).level for name in names]
    yield
    root.handlers[:], levels = before[0], before[2]
    root.setLevel(before[1])
    for name, level in zip(names, levels, strict=True):
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(capture=False)


def started(
    form: str, *, level: str = "info", secrets: tuple[str, ...] = (), is_terminal: bool = False
) -> io.StringIO:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    stream = Stream()
    configure(Redactor(secrets), level=level, format=form, stream=stream)  # type: ignore[arg-type]  # parametrized
    return stream


def test_text_is_one_line_with_the_facts_at_its_end() -> None:
    stream = started("text")
    log.info(
        "agent %s started", "demo", extra={"session": "s-1", "queued": 3, "note": "two words", "none": ""}
    )
    line = stream.getvalue()
    assert line.endswith(
        'INFO    core.host: agent demo started session=s-1 queued=3 note="two words" none=""\n'
    )
    assert line.count("\n") == 1


def test_json_is_one_object_a_line_and_keeps_numbers() -> None:
    stream = started("json")
    log.warning("mailbox %d%% full", 90, extra={"queued": 900, "is_halted": False})
    entry = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "warning",
        "logger": "turndock_server.core.host",
        "message": "mailbox 90% full",
        "queued": 900,
        "is_halted": False,
    }


@pytest.mark.parametrize(("is_terminal", "begins"), [(True, "2"), (False, "{")])
def test_auto_is_text_on_a_terminal_and_json_elsewhere(is_terminal: bool, begins: str) -> None:
    stream = started("auto", is_terminal=is_terminal)
    log.info("hello")
    assert stream.getvalue().startswith(begins)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_secret_shows_nowhere_in_a_record(form: str) -> None:
    stream = started(form, secrets=("hunter2",))
    try:
        raise ValueError("cannot log in with hunter2")
    except ValueError:
        log.exception(
            "trying %s", "hunter2", extra={"key": "hunter2", "pair": ("hunter2", 1)}, stack_info=True
        )
    written = stream.getvalue()
    assert "hunter2" not in written.replace(
        '"hunter2"', ""
    )  # the source lines of this test, in the traceback
    assert "cannot log in with [REDACTED]" in written
    assert "trying [REDACTED]" in written


def test_a_record_cannot_forge_another() -> None:
    stream = started("text")
    log.info("one\n2026-01-01 INFO two\x1b[31m", extra={"note": "a\nb"})
    assert stream.getvalue().count("\n") == 1
    assert "\\n2026-01-01 INFO two\\x1b[31m" in stream.getvalue()


def test_a_traceback_is_indented_below_its_record() -> None:
    stream = started("text")
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        log.exception("failed")
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("failed")
    assert trace
    assert all(line.startswith("  ") for line in trace)


def test_the_level_is_ours_and_others_are_heard_from_warning_on() -> None:
    stream = started("json", level="debug")
    log.debug("ours")
    logging.getLogger("turndock.wire").debug("ours too")
    logging.getLogger("sqlalchemy.engine").info("theirs")
    logging.getLogger("sqlalchemy.engine").warning("loud")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == [
        "ours",
        "ours too",
        "loud",
    ]


def test_warnings_are_records_too() -> None:
    stream = started("json")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old way", DeprecationWarning, stacklevel=1)
    assert "old way" in json.loads(stream.getvalue())["message"]
