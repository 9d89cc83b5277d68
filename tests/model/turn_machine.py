"""What the turn machine promises, as a few lines of pure Python: the model its tests compare it with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

End = Literal["ok", "error", "eof", "crash", "asks", "parks"]
Choice = Literal["noreply", "chain", "halt"]
Plan = tuple[End, Choice]
"""How a turn ends, and what the behavior decides then."""
Told = Literal["noreply", "prompt", "halt", "raise"]
"""What a notification makes the behavior do."""

PENDING, RUNNING = "pending", "running"
MAX_ATTEMPTS = 3


@dataclass
class Run:
    id: str
    prompt: str
    status: str = PENDING
    attempt: int = 0


@dataclass(frozen=True)
class Note:
    name: str
    told: Told
    run_id: str


@dataclass
class Model:
    """An agent with a mailbox; each turn it begins waits at its gate until it is told to go on."""

    plans: list[Plan]
    max_pending: int
    retries: bool
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    queue: list[str] = field(default_factory=list[str])
    current: str | None = None
    halted: bool = False
    stopped: bool = False
    heard: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Run and prompt of each turn the backend was given."""
    deferred: list[Note] = field(default_factory=list[Note])
    responses: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])
    events: list[Any] = field(default_factory=list[Any])
    begun: list[str] = field(default_factory=list[str])
    """The runs of the turns that began, but not of those that were taken up again."""
    waits: Literal["", "open", "parked"] = ""
    """How the current turn waits for people."""
    said: str = ""
    """What the current turn said before it was parked."""

    @property
    def asked(self) -> str:
        """The approval that waits; empty = none."""
        return f"q{self.turn}" if self.waits else ""

    @property
    def turn(self) -> int:
        """Number of the latest turn."""
        return len(self.heard) - 1

    # --- What callers do -----------------------------------------------------------------------------------------

    def admits(self) -> bool:
        is_next = self.current is None and not self.halted
        return is_next or len(self.queue) + 1 <= self.max_pending

    @property
    def busy(self) -> bool:
        return self.current is not None or bool(self.queue) or self.halted

    def given(self) -> list[str]:
        """The runs that callers made."""
        return [run_id for run_id in self.runs if "/" not in run_id]

    def enqueue(self, run_id: str, prompt: str, *, interrupts: bool = False) -> None:
        self.runs[run_id] = Run(run_id, prompt)
        self.queue.insert(0 if interrupts else len(self.queue), run_id)
        if interrupts:
            self.interrupt()
        self._dispatch()

    def interrupt(self) -> None:
        if self.current is not None:
            self._end("cancelled:interrupted", "noreply")

    def release(self) -> None:
        """The current turn goes on to its end."""
        end, choice = self.plans[self.turn]
        if end in ("asks", "parks"):
            self.waits = "open" if end == "asks" else "parked"
            return
        status = {
            "ok": "completed",
            "error": f"failed:e{self.turn}",
            "eof": "failed:no_terminal_event",
            "crash": "failed:task_crashed",
        }[end]
        self._end(status, choice if end in ("ok", "error") else "noreply")

    def answer(self) -> None:
        """Somebody decides on what the current turn asks."""
        assert self.current is not None
        if self.waits == "open":
            self._end("completed", self.plans[self.turn][1])
            return
        self.said += f"r{self.turn}"
        self.waits = ""
        self.heard.append((self.current, self.runs[self.current].prompt))

    def notify(self, note: Note) -> None:
        self.deferred.append(note)
        if self.current is None:
            self._drain()
            self._dispatch()

    def unhalt(self) -> None:
        self.halted = False
        self._dispatch()

    def cancel(self, run_id: str, reason: str) -> None:
        self.queue.remove(run_id)
        self.runs[run_id].status = f"cancelled:{reason}"

    def edit(self, run_id: str, before: str | None, prompt: str | None) -> None:
        self.runs[run_id].prompt = prompt or self.runs[run_id].prompt
        self.queue.remove(run_id)
        self.queue.insert(len(self.queue) if before is None else self.queue.index(before), run_id)

    def stop(self) -> None:
        self.stopped = True  # No further turn begins.
        if self.current is not None:
            self._end("cancelled:agent_terminated", "noreply")
        self._drain()
        for run_id in list(self.queue):
            self.cancel(run_id, "agent_terminated")

    def start_again(self) -> None:
        self.stopped = self.halted = False

    def lose_host(self) -> None:
        """The host dies; another one takes over what is stored."""
        if self.waits == "parked":
            return
        lost = self.runs[self.current] if self.current is not None else None
        if lost is None:
            self._drain()
        elif self.retries and lost.attempt < MAX_ATTEMPTS:
            lost.status, self.current, self.waits, self.said = PENDING, None, "", ""
            self.queue.insert(0, lost.id)
            self._drain()
        else:
            self._end("failed:host_lost", "noreply")
        self._dispatch()

    # --- What follows --------------------------------------------------------------------------------------------

    def _end(self, status: str, choice: Choice) -> None:
        assert self.current is not None
        run, self.current = self.runs[self.current], None
        run.status = status
        if status == "completed":
            self.responses.append(f"{self.said}r{self.turn}")
            # The behavior decides by the whole text, and knows none of two parts.
            choice = "noreply" if self.said else choice
        else:
            self.errors.append(status.partition(":")[2])
        self.waits, self.said = "", ""
        chained = f"c{self.turn}" if choice == "chain" else None
        self.halted = self.halted or choice == "halt"
        self._drain()
        if chained is not None:
            chained_id = chain_id(run.id)
            self.runs[chained_id] = Run(chained_id, chained)
            self.queue.insert(0, chained_id)
        self._dispatch()

    def _drain(self) -> None:
        for note in self.deferred:
            if note.told == "raise":
                continue
            self.events.append({"note": note.name, "told": note.told})
            if note.told == "halt":
                self.halted = True
            if note.told == "prompt":
                self.runs[note.run_id] = Run(note.run_id, f"from {note.name}")
                self.queue.append(note.run_id)
        self.deferred.clear()

    def _dispatch(self) -> None:
        if self.current is None and self.queue and not self.halted and not self.stopped:
            run = self.runs[self.queue.pop(0)]
            run.status, run.attempt = RUNNING, run.attempt + 1
            self.current = run.id
            self.heard.append((run.id, run.prompt))
            self.begun.append(run.id)


def chain_id(parent: str) -> str:
    """As the host derives it."""
    root, marker, number = parent.rpartition("/chain/")
    return f"{root}/chain/{int(number) + 1}" if marker else f"{parent}/chain/1"
