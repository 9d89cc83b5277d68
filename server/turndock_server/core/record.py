"""What a turn has said so far: what is still to be stored, what its response will carry, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from turndock import events, jsontext
from turndock.backend.v1 import Paused, Result
from turndock.ports import TurnOutput
from turndock.types.v1 import Event, EventType, Failure, ToolApprovalRequested, Usage
from turndock_server.core.capture import Capture, CaptureOverflow
from turndock_server.core.history import Remains
from turndock_server.core.intake import Intake
from turndock_server.core.written import Pen, Piece, Written, encoded_text, piece_of, read, write

MAX_BUFFERED_EVENTS: Final = 1_000
MAX_BUFFERED_BYTES: Final = 1 << 20

Terminal = Result | Failure | Paused


class _Stored(NamedTuple):
    """What the store said of events that it took together."""

    first: int
    incarnation: str
    stored_at_us: int
    length: int


class TurnRecord:
    """Takes in what a backend says, in its order."""

    def __init__(
        self,
        intake: Intake,
        capture: Capture,
        on_taken: Callable[[Sequence[Written]], None],
        on_title: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.capture = capture
        self.usage: Usage | None = None
        """The latest one said."""
        self.open_tools: dict[str, str] = {}
        """Tool calls without an end: id → name."""
        self.turn_count = 0
        self._intake = intake
        self._on_taken = on_taken
        self._on_title = on_title
        self._text: list[bytes] = []
        self._buffer: list[Written] = []
        self._buffered_bytes = 0
        self._kept: list[Written] = []
        self._keeps_terminal = False
        self._stored: list[_Stored] = []

    def go_on(self, left: Remains) -> None:
        """Go on from what an earlier part of the turn left in the log."""
        self.usage, self.open_tools, self.turn_count = left.usage, left.open_tools, left.turn_count
        self._text.append(left.text.encode())

    @property
    def text(self) -> str:
        """All streamed text, joined with nothing between."""
        return b"".join(self._text).decode()

    @property
    def is_full(self) -> bool:
        """Whether enough is buffered that the backend has to wait."""
        return len(self._buffer) >= MAX_BUFFERED_EVENTS or self._buffered_bytes >= MAX_BUFFERED_BYTES

    # --- Storing ---------------------------------------------------------------------------------------------------

    def drain(self) -> list[Written]:
        """What is still to be stored, which is the caller's from now on."""
        batch, self._buffer, self._buffered_bytes = self._buffer, [], 0
        return batch

    def stored(self, first: int, incarnation: str, stored_at_us: int, count: int) -> None:
        """The next `count` events of the turn were stored under numbers from `first` on."""
        self._stored.append(_Stored(first, incarnation, stored_at_us, count))

    def ask(self, request: ToolApprovalRequested) -> int | None:
        """Count a request that is stored by itself; its place among what is kept, if it is."""
        kind = EventType.EVENT_TYPE_TOOL_APPROVAL_REQUESTED
        event = Event(type=kind, tool_approval_requested=request)
        if not self.capture.take(events.kind(event), event.ByteSize()):
            return None
        self._kept.append((b"", kind, event.SerializeToString()))
        return len(self._kept) - 1

    def asked(self, event: Event, place: int | None) -> None:
        """The request that was counted is stored, as this event."""
        if place is not None:
            self._kept[place] = (b"", event.type, event.SerializeToString())
        self.stored(event.sequence, event.incarnation, event.stored_at_us, 1)

    # --- The response ----------------------------------------------------------------------------------------------

    def keep_terminal(self, event: Event) -> None:
        """Count the terminal; it is kept like any other event if it still fits."""
        try:
            self._keeps_terminal = self.capture.take(events.kind(event), event.ByteSize())
        except CaptureOverflow:
            # A lossless turn that just fits is complete: its terminal travels beside the events.
            return

    def kept_with(self, terminal: Event) -> list[Event]:
        """The events of the response, as they were stored; the terminal too, if it is one of them.

        What is kept is the turn's beginning, so the first ones stored are the first ones kept.
        """
        kept = list(read(self._kept))
        place = 0
        for stored in self._stored:
            for offset, event in enumerate(kept[place : place + stored.length]):
                event.sequence = stored.first + offset
                event.incarnation = stored.incarnation
                event.stored_at_us = stored.stored_at_us
            place += stored.length
        return [*kept, terminal] if self._keeps_terminal else kept

    # --- Taking in -------------------------------------------------------------------------------------------------

    def take(self, outputs: Sequence[TurnOutput]) -> Terminal | None:
        """Take outputs in up to the first terminal, which is returned. No outputs at all = the stream's end."""
        begin = len(self._buffer)
        terminal: Terminal | None = None
        pen = self._intake.pen()
        try:
            for output in outputs:
                # Text first and by itself, since nearly all events are.
                if isinstance(output, Event):
                    said = output.SerializeToString()
                    piece = piece_of(said)
                    if piece is None:
                        self._admit(self._intake.event(output))
                    else:
                        self._admit_piece(pen.text(said), piece)
                elif isinstance(output, str):
                    self._take_text(output, pen)
                else:
                    terminal = output
                    break
            if terminal is not None or not outputs:
                left = self._intake.end()
                if left is not None:
                    self._admit(left)
        finally:
            taken = self._buffer[begin:]
            if taken:
                self._on_taken(taken)
        return terminal

    def _take_text(self, text: str, pen: Pen) -> None:
        """Take a bare piece of text in, unless all of it is kept back for its other half."""
        repaired = self._intake.joined(text)
        if repaired is None:
            return
        said = encoded_text(repaired)
        piece = piece_of(said) if jsontext.REPLACEMENT not in repaired else None
        if piece is None:
            self._admit(self._intake.text(repaired))
        else:
            self._admit_piece(pen.text(said), piece)

    def _admit_piece(self, written: Written, piece: Piece) -> None:
        size = len(written[2])
        text, is_thought = piece
        if self.capture.first_omission:
            self.capture.observed += 1  # what `take` would do, without the call
        elif self.capture.take("thinking" if is_thought else "text", size):
            self._kept.append(written)
        self._buffer.append(written)
        self._buffered_bytes += size
        if not is_thought:
            self._text.append(text)

    def _admit(self, event: Event) -> None:
        written = write(event)
        size = len(written[-1])
        if self.capture.take(events.kind(event), size):
            self._kept.append(written)
        self._buffer.append(written)
        self._buffered_bytes += size
        match event.type:
            case EventType.EVENT_TYPE_MESSAGE_STREAMED:
                if not event.message_streamed.thinking:
                    self._text.append(event.message_streamed.text.encode())
            case EventType.EVENT_TYPE_TOKEN_USAGE_UPDATED:
                self.usage = event.token_usage_updated.usage
            case EventType.EVENT_TYPE_TOOL_CALL_STARTED:
                self.open_tools[event.tool_call_started.tool_call_id] = event.tool_call_started.name
            case EventType.EVENT_TYPE_TOOL_CALL_COMPLETED:
                self.open_tools.pop(event.tool_call_completed.tool_call_id, None)
            case EventType.EVENT_TYPE_TOOL_CALL_FAILED:
                self.open_tools.pop(event.tool_call_failed.tool_call_id, None)
            case EventType.EVENT_TYPE_TURN_COMPLETED:
                self.turn_count += 1
            case EventType.EVENT_TYPE_CUSTOM:
                if title := events.title_of(event):
                    self._on_title(title)
            case _:
                pass
