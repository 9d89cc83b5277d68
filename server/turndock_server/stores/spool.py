"""Messages that are put aside: in memory as long as they are few, in a nameless file beyond that."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

MEMORY_BYTES: Final = 1 << 20
"""What a spool holds in memory."""

_SIZE_BYTES: Final = 4


class Spool(Generic[M]):
    """Takes messages of one kind, then gives them back in batches, in order. For one thread at a time; blocking."""

    def __init__(self, kind: type[M]) -> None:
        self._kind = kind
        self._file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 - closed by `__exit__`
        self.count = 0
        """Messages that were put in."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def put(self, message: M) -> None:
        """Put a message aside."""
        body = message.SerializeToString()
        self._file.write(len(body).to_bytes(_SIZE_BYTES, "big") + body)
        self.count += 1

    def batches(self, max_bytes: int) -> Iterator[list[M]]:
        """Everything that was put aside, first one first. Only a batch of one message is above `max_bytes`."""
        self._file.seek(0)
        batch: list[M] = []
        size = 0
        while header := self._file.read(_SIZE_BYTES):
            body = self._file.read(int.from_bytes(header, "big"))
            if batch and size + len(body) > max_bytes:
                yield batch
                batch, size = [], 0
            batch.append(self._kind.FromString(body))
            size += len(body)
        if batch:
            yield batch
