"""Prints a conversation as Markdown, from the server's own store: also of an agent that was stopped long ago."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator

from turndock.client import DEFAULT_ENDPOINT, Client
from turndock.errors import TurndockError
from turndock.ports import SessionStore
from turndock.store.v1 import GetEventsRequest, GetSessionRequest
from turndock.types.v1 import Event, EventType

MESSAGES = (EventType.EVENT_TYPE_MESSAGE_SENT, EventType.EVENT_TYPE_MESSAGE_RECEIVED)


async def messages(store: SessionStore, session_id: str) -> AsyncIterator[Event]:
    """A session's prompts and answers, page by page."""
    after, head = 0, 1
    while after < head:
        request = GetEventsRequest(session_id=session_id, after_sequence=after, types=MESSAGES)
        page = await store.get_events(request)
        for event in page.events:
            yield event
        after, head = page.scanned_through, page.head


async def transcript(endpoint: str, session_id: str) -> None:
    """Print it. Raises `TurndockError` when there is no such session or no server."""
    async with Client(endpoint) as client:
        store = client.session_store()
        # Reading an unknown session's events is no error: it has none.
        await store.get_session(GetSessionRequest(session_id=session_id))
        async for event in messages(store, session_id):
            if event.HasField("message_sent"):
                print(f"**{event.message_sent.text}**\n")
            else:
                print(f"{event.message_received.text}\n")


def main() -> None:
    """Print the transcript of one session."""
    parser = argparse.ArgumentParser(prog="python -m turndock.examples.transcript", description=__doc__)
    parser.add_argument("session", help="its id; `turndock sessions list` shows those there are")
    parser.add_argument("--server", default=DEFAULT_ENDPOINT)
    options = parser.parse_args()
    try:
        asyncio.run(transcript(options.server, options.session))
    except TurndockError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
