"""Cursors: what they fit, and what is none."""

from __future__ import annotations

import base64
from typing import Any

from turndock.conformance.claims import equal, holds, refused
from turndock.conformance.query.suite import SUITE, Fixture, tokens
from turndock.types.v1 import EventType, SessionStatus


async def _rows(fixture: Fixture) -> None:
    for number in range(3):
        await fixture.save(f"ses_{number}", tags=["t"])
        await fixture.run(f"run_{number}", "ses_1", provider="p", after=number, usage=tokens(number, 1))
        await fixture.append(fixture.event("ses_1", after=number, provider="p"))


@SUITE.case("Query.Cursor")
async def a_cursor_fits_only_its_call_its_order_its_filters_and_its_scope(fixture: Fixture) -> None:
    """A cursor of another search, order, filter or scope is INVALID_CURSOR."""
    await _rows(fixture)
    other = fixture.other()
    await _rows(other)
    searches: dict[str, Any] = {"sessions": fixture.sessions, "runs": fixture.runs, "events": fixture.events}
    cursors = {name: (await search(1)).next_cursor for name, search in searches.items()}
    filters: dict[str, list[dict[str, Any]]] = {
        "sessions": [
            {"statuses": [SessionStatus.SESSION_STATUS_ACTIVE]},
            {"tags": ["t"]},
            {"agent_id": "agent-1"},
            {"include_deleted": True},
            {"created_after_us": 1},
        ],
        "runs": [{"provider": "p"}, {"session_id": "ses_1"}, {"min_tokens": 0}, {"started_after_us": 1}],
        "events": [
            {"session_ids": ["ses_1"]},
            {"types": [EventType.EVENT_TYPE_MESSAGE_RECEIVED]},
            {"providers": ["p"]},
            {"since_us": 1},
        ],
    }
    for name, search in searches.items():
        for foreign, cursor in cursors.items():
            if foreign != name:
                sentence = f"A cursor of {foreign} fits no {name}."
                await refused(search(1, cursor), "INVALID_CURSOR", sentence, field="page.cursor")
        for order in (2, 3):
            await refused(
                search(1, cursors[name], order=order), "INVALID_CURSOR", f"Order {order} of {name}."
            )
        for selected in filters[name]:
            await refused(search(1, cursors[name], **selected), "INVALID_CURSOR", f"{name} by {selected}.")
        elsewhere = getattr(other, name)
        await refused(
            elsewhere(1, cursors[name]), "INVALID_CURSOR", f"A cursor of {name} fits no other scope."
        )


@SUITE.case("Query.Cursor")
async def what_means_the_same_has_the_same_cursors(fixture: Fixture) -> None:
    """A cursor fits with another limit, with the default order said, and with a filter's values in another order."""
    await _rows(fixture)
    page = await fixture.sessions(1, tags=["t"], statuses=[2, 3])
    rest = await fixture.sessions(1000, page.next_cursor, tags=["t", "t"], statuses=[3, 2, 2], order=1)
    equal(len(rest.sessions), 2, "It fits.")
    events = await fixture.events(1, session_ids=["a", "ses_1"])
    others = await fixture.events(7, events.next_cursor, session_ids=["ses_1", "a"], order=1)
    equal([event.sequence for event in others.events], [2, 3], "It fits.")


@SUITE.case("Query.Cursor")
async def a_cursor_that_was_tampered_with_is_refused(fixture: Fixture) -> None:
    """Every change of a cursor, and everything that never was one, is INVALID_CURSOR, and nothing else."""
    await _rows(fixture)
    for search in (fixture.sessions, fixture.runs, fixture.events):
        cursor = (await search(1)).next_cursor
        holds(cursor, "A page with rows has a cursor.")
        changed = [
            f"{cursor[:at]}{'A' if cursor[at] != 'A' else 'B'}{cursor[at + 1 :]}"
            for at in range(len(cursor) - 1)
        ]
        made_up = [
            cursor[:-1],
            cursor[1:],
            f"{cursor}A",
            cursor.swapcase(),
            "1",
            "é \x7f !",
            "=" * 8,
            base64.urlsafe_b64encode(b'{"py/object":"os.system"}').decode(),
            base64.urlsafe_b64encode(b"\x80\x04\x95" + b"\0" * 12).decode(),  # as pickle begins
            base64.urlsafe_b64encode(b"\x83h\x02w\x04kind" + b"\0" * 8).decode(),  # as Erlang terms begin
            "A" * 4096,
            "[" * 3000,
        ]
        for text in (*changed, *made_up):
            await refused(
                search(1, text), "INVALID_CURSOR", f"{text[:60]!r} is no cursor.", field="page.cursor"
            )


@SUITE.case("Query.Cursor")
async def a_cursor_of_the_last_page_finds_what_came_since(fixture: Fixture) -> None:
    """Every page with rows has a cursor, the last one too; with it a reader asks for what came since."""
    await _rows(fixture)
    for session_ids in ([], ["ses_1"]):
        page = await fixture.events(1000, session_ids=session_ids)
        holds(page.next_cursor, "The last page has a cursor.")
        nothing = await fixture.events(1000, page.next_cursor, session_ids=session_ids)
        equal(
            (len(nothing.events), nothing.next_cursor), (0, ""), "Nothing came since, and that page has none."
        )
        (event,) = await fixture.append(fixture.event("ses_1"))
        since = await fixture.events(1000, page.next_cursor, session_ids=session_ids)
        equal(list(since.events), [event], "It is found from there.")
