"""What a behavior is shown of a turn."""

import asyncio
from collections.abc import Sequence

from turndock import events
from turndock.types.v1 import Event
from turndock_server.core.observer import MAX_BEHIND_BYTES, MAX_SHOWN_BYTES, Observer


class Audience:
    """Keeps what it is shown; looks at nothing more while it is not `ready`."""

    def __init__(self) -> None:
        self.shown: list[list[Event]] = []
        self.ready = asyncio.Event()

    async def look(self, batch: Sequence[Event]) -> None:
        self.shown.append(list(batch))
        await self.ready.wait()

    def texts(self) -> str:
        return "".join(event.message_streamed.text for batch in self.shown for event in batch)


async def test_every_event_is_shown_once_in_order_and_in_larger_batches_to_a_slow_audience() -> None:
    audience = Audience()
    observer = Observer(audience.look)
    observer.see([events.text("a")])
    assert not await observer.finished_within(0)
    for piece in "bcd":
        observer.see([events.text(piece)])
    audience.ready.set()
    await observer.finish()
    assert [len(batch) for batch in audience.shown] == [1, 3]
    assert audience.texts() == "abcd"
    assert await observer.finished_within(0)


async def test_batches_are_bounded_and_what_is_too_large_is_shown_alone() -> None:
    audience = Audience()
    audience.ready.set()
    observer = Observer(audience.look)
    half = "x" * (MAX_SHOWN_BYTES // 2)
    observer.see(
        [events.text("a"), events.text(half * 3), events.text(half), events.text(half), events.text("b")]
    )
    await observer.finish()
    assert [len(batch) for batch in audience.shown] == [1, 1, 1, 2]
    assert (
        max(sum(event.ByteSize() for event in batch) for batch in audience.shown if len(batch) > 1)
        <= MAX_SHOWN_BYTES
    )


async def test_a_turn_is_told_when_its_audience_is_far_behind() -> None:
    audience = Audience()
    observer = Observer(audience.look)
    large = events.text("x" * (1 << 20))
    observer.see([large] * 10)
    behind = [observer.is_far_behind]
    observer.see([large] * 10)
    behind.append(observer.is_far_behind)
    audience.ready.set()
    await observer.finish()
    behind.append(observer.is_far_behind)
    assert behind == [False, True, False]
    assert 10 << 20 < MAX_BEHIND_BYTES < 20 << 20


async def test_it_goes_on_after_it_was_finished() -> None:
    audience = Audience()
    audience.ready.set()
    observer = Observer(audience.look)
    for piece in "abc":
        observer.see([events.text(piece)])
        await observer.finish()
    assert audience.texts() == "abc"
