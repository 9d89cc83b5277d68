"""The suite of `Backend` and what its cases get."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Final, TypeVar

from turndock.backend.v1 import (
    CheckpointSessionRequest,
    InterruptRequest,
    PromptRequest,
    Result,
    Resume,
    ResumeSessionRequest,
    StartSessionRequest,
    TerminateSessionRequest,
    UpdateSessionRequest,
)
from turndock.conformance.backend.turn import Turn, in_time
from turndock.conformance.cases import Suite
from turndock.conformance.claims import ContractBroken
from turndock.ports import BACKEND_OPTIONS, Backend
from turndock.types.v1 import ApprovalDecision, BackendSession, Scope, ToolApprovalDecided

INTERRUPT: Final = "interrupt"
CHECKPOINT_SESSION: Final = "checkpoint_session"
UPDATE_SESSION: Final = "update_session"
RESUME_SESSION: Final = "resume_session"

LONG_RUNNING: Final = "long_running"
FAILING: Final = "failing"
CHECKPOINTING: Final = "checkpointing"
TOOL_USING: Final = "tool_using"
REPEATING: Final = "repeating"
ASKING: Final = "asking"
PARKING: Final = "parking"

T = TypeVar("T")


@dataclass(frozen=True)
class Prompt:
    """A prompt that makes a backend do something."""

    text: str
    config_json: str | None = None
    """Configuration of a session whose first prompt this is. None: that of the fixture."""


@dataclass(frozen=True)
class Prompts:
    """The prompts by which cases make a backend do what they are about, from whoever wrote the backend.

    Where a backend cannot do one of these, leave it out and name the reason in `skips`.
    """

    answering: Prompt
    """Says some text and ends with a result; also as a later prompt in the sessions of all the others."""
    long_running: Prompt | None = None
    """Says something soon, and then keeps going for minutes unless it is stopped."""
    failing: Prompt | None = None
    """Ends with a failure, or is rejected."""
    checkpointing: Prompt | None = None
    """Asks for a checkpoint and then ends with a result."""
    tool_using: Prompt | None = None
    """Uses a tool and ends with a result."""
    repeating: Callable[[str], Prompt] | None = None
    """Ends with an answer that holds the given word, and says it in several pieces."""
    asking: Prompt | None = None
    """Asks for an approval with the turn kept open, and ends with a result whatever is decided."""
    parking: Prompt | None = None
    """Ends with `paused`; taken up again it ends with a result, whatever was decided."""


Check = Callable[["Fixture"], Awaitable[None]]

SUITE: Final = Suite["Fixture"]("Backend", BACKEND_OPTIONS)
_PROMPTS_OF_CASES: Final[dict[str, frozenset[str]]] = {}


def case(
    *requirements: str, needs: Iterable[str] = (), prompts: Iterable[str] = ()
) -> Callable[[Check], Check]:
    """`Suite.case` for this suite, with the names of the optional prompts that the case needs."""

    def add(check: Check) -> Check:
        _PROMPTS_OF_CASES[getattr(check, "__name__", "")] = frozenset(prompts)
        return SUITE.case(*requirements, needs=needs)(check)

    return add


def skips(**reasons: str) -> dict[str, str]:
    """For `Suite.run`: the cases that need a prompt this backend has none of, by prompt, with the reason why.

    Raises `ValueError` for names of no optional prompt.
    """
    optional = {prompt.name for prompt in fields(Prompts)} - {"answering"}
    if strangers := sorted(reasons.keys() - optional):
        raise ValueError(f"no optional prompts: {strangers}")
    return {
        name: reasons[min(needed & reasons.keys())]
        for name, needed in _PROMPTS_OF_CASES.items()
        if needed & reasons.keys()
    }


@dataclass(frozen=True)
class Fixture:
    """One backend, one fresh partition, and short ways to say what a case does."""

    backend: Backend
    prompts: Prompts
    abilities: frozenset[str]
    """Names of the optional calls that the backend is said to offer."""
    config_json: str = "{}"
    """Configuration of sessions whose prompt does not bring its own."""
    deadline_s: float = 10.0
    """Seconds within which calls are answered and turns come to their end."""
    stop_s: float = 3.0
    """Seconds within which an interrupt is confirmed, and a stopped turn has ended: so long a host waits."""
    scope: Scope = field(default_factory=lambda: Scope(tenant=f"conformance-{uuid.uuid4().hex}"))

    def prompt(self, name: str) -> Prompt:
        """The optional prompt of that name. Fails where there is none: that is for a list of skips to say."""
        found: Prompt | None = getattr(self.prompts, name)
        if found is None:
            raise ContractBroken(_missing(name))
        return found

    def repeating(self, word: str) -> Prompt:
        """A prompt whose answer holds the word."""
        if self.prompts.repeating is None:
            raise ContractBroken(_missing(REPEATING))
        return self.prompts.repeating(word)

    async def start(self, prompt: Prompt | None = None) -> Conversation:
        """A new agent's conversation, in which this prompt comes first; None: `answering`."""
        talk = Conversation(self, prompt or self.prompts.answering)
        talk.session = await talk.start()
        return talk

    async def interrupt(self, turn_token: str) -> None:
        """Interrupt a turn; returns when the backend has confirmed it."""
        request = InterruptRequest(scope=self.scope, turn_token=turn_token, reason="interrupted")
        await in_time(self.backend.interrupt(request), self.stop_s, "Interrupt must be confirmed.")

    async def answered(self, name: str, call: Awaitable[T]) -> T:
        """A unary call's answer, within the deadline."""
        return await in_time(call, self.deadline_s, f"{name} must return.")


class Conversation:
    """One agent's sessions and turns, in the order in which a host asks for them."""

    def __init__(self, fixture: Fixture, prompt: Prompt) -> None:
        self.session = BackendSession()
        """What the backend is given next."""
        self.first = prompt
        self.session_id = f"ses-{uuid.uuid4().hex}"
        self._fixture = fixture
        self.config_json = fixture.config_json if prompt.config_json is None else prompt.config_json
        self._request_id = uuid.uuid4().hex
        self._turns = 0

    async def start(self) -> BackendSession:
        """Start its session; each time with the same request_id."""
        request = StartSessionRequest(
            scope=self._fixture.scope,
            request_id=self._request_id,
            session_id=self.session_id,
            agent_name="ann",
            config_json=self.config_json,
        )
        fixture = self._fixture
        return (await fixture.answered("StartSession", fixture.backend.start_session(request))).session

    async def resume(self, session: BackendSession | None = None) -> BackendSession:
        """Reattach, to the session it has or to another."""
        request = ResumeSessionRequest(
            scope=self._fixture.scope,
            request_id=uuid.uuid4().hex,
            session_id=self.session_id,
            agent_name="ann",
            config_json=self.config_json,
            session=self.session if session is None else session,
        )
        fixture = self._fixture
        return (await fixture.answered("ResumeSession", fixture.backend.resume_session(request))).session

    async def checkpointed(self, session: BackendSession, provider_session_id: str) -> BackendSession:
        """The session with a checkpoint applied."""
        request = CheckpointSessionRequest(
            scope=self._fixture.scope, session=session, provider_session_id=provider_session_id
        )
        fixture = self._fixture
        return (
            await fixture.answered("CheckpointSession", fixture.backend.checkpoint_session(request))
        ).session

    async def updated(self, session: BackendSession, result: Result) -> BackendSession:
        """The session with a result folded in."""
        request = UpdateSessionRequest(scope=self._fixture.scope, session=session, result=result)
        fixture = self._fixture
        return (await fixture.answered("UpdateSession", fixture.backend.update_session(request))).session

    async def terminate(self) -> None:
        """Release its session."""
        request = TerminateSessionRequest(scope=self._fixture.scope, session=self.session)
        fixture = self._fixture
        await fixture.answered("TerminateSession", fixture.backend.terminate_session(request))

    def request(self, prompt: Prompt, *, attempt: int = 1) -> PromptRequest:
        """A turn's request."""
        self._turns += attempt == 1
        return PromptRequest(
            scope=self._fixture.scope,
            session=self.session,
            prompt=prompt.text,
            run_id=f"run-{self._turns}",
            attempt=attempt,
            turn_token=uuid.uuid4().hex,
            session_id=self.session_id,
            agent_name="ann",
        )

    def open(self, prompt: Prompt | None = None, *, refusal: str = "") -> Turn:
        """A turn, of the first prompt if none is named; checkpoints it asks for are refused with the reason."""
        fixture = self._fixture
        return Turn(
            fixture.backend,
            self.request(prompt or self.first),
            deadline_s=fixture.deadline_s,
            stop_s=fixture.stop_s,
            refusal=refusal,
        )

    def deciding(
        self, decision: ApprovalDecision.ValueType | None, request: PromptRequest | None = None
    ) -> Turn:
        """A turn, of the first prompt if no request is made; what it asks for is decided so, or, None, never."""
        fixture = self._fixture
        return Turn(
            fixture.backend,
            request or self.request(self.first),
            deadline_s=fixture.deadline_s,
            stop_s=fixture.stop_s,
            decision=decision,
        )

    def resuming(self, decisions: Iterable[ToolApprovalDecided], parked: Turn) -> PromptRequest:
        """The request that takes a parked turn up: the same run and prompt, the session as it was left."""
        request = PromptRequest()
        request.CopyFrom(parked.given)
        request.turn_token = uuid.uuid4().hex
        request.session.CopyFrom(self.session)
        request.resume.CopyFrom(Resume(decisions=decisions))
        return request

    async def ask(self, prompt: Prompt | None = None) -> Turn:
        """A whole turn; afterwards the session is the one a host would go on with."""
        async with self.open(prompt) as turn:
            await turn.end()
        self.session = await self.folded(turn)
        return turn

    async def ask_on(self) -> Turn:
        """A whole turn of the `answering` prompt, which must end with a result."""
        turn = await self.ask(self._fixture.prompts.answering)
        turn.result("The next turn, of an `answering` prompt,")
        return turn

    async def folded(self, turn: Turn) -> BackendSession:
        """The session after a turn that ended by itself, as a host makes it."""
        if turn.rejection is not None:
            return self.session
        abilities = self._fixture.abilities
        session = turn.accepted[-1] if turn.accepted else self.session
        if turn.checkpoints and CHECKPOINT_SESSION in abilities:
            session = await self.checkpointed(session, turn.checkpoints[0])
        terminal = turn.outputs[-1] if turn.outputs else None
        if isinstance(terminal, Result) and UPDATE_SESSION in abilities:
            session = await self.updated(session, terminal)
        return session


def _missing(name: str) -> str:
    return (
        f"The fixture has no prompt `{name}`. If the backend can do no such thing, say why: run the suite with "
        f"`skips=turndock.conformance.backend.skips({name}='why')`."
    )
