"""What `turndock doctor` says about a PostgreSQL database."""

from __future__ import annotations

import pytest

from support import postgres
from turndock_server.config import Settings
from turndock_server.doctor import Finding, Level, database


def findings(url: str) -> dict[Level, Finding]:
    """What it says, by level: the last of each."""
    settings = Settings.model_validate({"store": {"kind": "postgresql", "url": url}})
    return {finding.level: finding for finding in database.database(settings)}


@pytest.fixture
def url() -> str:
    return postgres.server().new_database()


def test_other_stores_are_none_of_its_business() -> None:
    assert not list(database.database(Settings()))


@pytest.mark.parametrize(
    ("wrong", "what", "mend"),
    [
        ("nowhere", "there is no such database", "CREATE DATABASE"),
        ("stranger", "does not let this user in", "CREATE ROLE"),
        ("away", "cannot be reached", "pg_isready"),
    ],
)
def test_a_database_that_cannot_be_used_is_an_error_with_a_remedy(wrong: str, what: str, mend: str) -> None:
    server = postgres.server()
    urls = {
        "nowhere": server.url("nowhere"),
        "stranger": server.url(user="stranger"),
        "away": "postgresql://me@127.0.0.1:1/x",
    }
    error = findings(urls[wrong])[Level.ERROR]
    assert what in error.what
    assert mend in error.mend


def test_it_says_what_is_in_the_database_and_what_becomes_of_it(url: str) -> None:
    server = postgres.server()
    said = findings(url)
    assert said[Level.OK].what == "it is empty; the tables will be made"
    assert (
        said[Level.WARNING].mend == "Set fsync = on in postgresql.conf"
    )  # as for every server of these tests

    server.sql("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)", url=url)
    said = findings(url)
    assert "older and will be brought up to date" in said[Level.WARNING].what
    assert "pg_dump" in said[Level.WARNING].mend

    server.sql("INSERT INTO alembic_version VALUES ('9999')", url=url)
    assert "newer than" in findings(url)[Level.ERROR].what

    server.sql("DROP TABLE alembic_version", "CREATE TABLE theirs (x int)", url=url)
    assert "tables of something else" in findings(url)[Level.ERROR].what
