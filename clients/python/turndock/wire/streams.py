"""What streams of either side need."""

from __future__ import annotations

from collections.abc import Awaitable, Callable


async def close_stream(stream: object) -> None:
    """Close an async generator; other iterators have nothing to close."""
    close: Callable[[], Awaitable[None]] | None = getattr(stream, "aclose", None)
    if close is not None:
        await close()
