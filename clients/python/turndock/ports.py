"""The contracts as Python sees them: what a plug-in author implements and what the host calls.

Every port is a protocol whose methods take and return the contract's protobuf messages and raise `TurndockError`.
A message handed to a port belongs to the other side from then on: nobody changes it. The same class serves in process
and, through `turndock.serving`, in a process of its own; `turndock.remote` is every port over a channel.

Optional calls raise `turndock.errors.not_offered`; the base classes here do so for whatever is not overridden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from turndock.backend.v1 import (
    CheckpointSessionRequest,
    CheckpointSessionResponse,
    InterruptRequest,
    InterruptResponse,
    Paused,
    PromptRequest,
    Result,
    ResumeSessionRequest,
    ResumeSessionResponse,
    StartSessionRequest,
    StartSessionResponse,
    TerminateSessionRequest,
    TerminateSessionResponse,
    UpdateSessionRequest,
    UpdateSessionResponse,
)
from turndock.behavior.v1 import (
    HandleErrorRequest,
    HandleErrorResponse,
    HandleEventRequest,
    HandleEventResponse,
    HandleResponseRequest,
    HandleResponseResponse,
    HandleStreamEventRequest,
    HandleStreamEventResponse,
    InitAgentRequest,
    InitAgentResponse,
    PostRunRequest,
    PostRunResponse,
    PostTurnRequest,
    PostTurnResponse,
    PreRunRequest,
    PreRunResponse,
    PreToolRequest,
    PreToolResponse,
    PreTurnRequest,
    PreTurnResponse,
    TerminateAgentRequest,
    TerminateAgentResponse,
)
from turndock.errors import not_offered
from turndock.store.v1 import (
    AppendEventRequest,
    AppendEventResponse,
    AppendEventsRequest,
    AppendEventsResponse,
    AppendEventWithSequenceRequest,
    AppendEventWithSequenceResponse,
    ArtifactStoreDeleteRequest,
    ArtifactStoreDeleteResponse,
    ArtifactStoreGetRequest,
    ArtifactStoreGetResponse,
    ArtifactStoreHeadRequest,
    ArtifactStoreHeadResponse,
    ArtifactStoreListRequest,
    ArtifactStoreListResponse,
    ArtifactStorePutRequest,
    ArtifactStorePutResponse,
    CancelRunRequest,
    CancelRunResponse,
    ClaimAgentRequest,
    ClaimAgentResponse,
    CleanOrphanedArtifactsRequest,
    CleanOrphanedArtifactsResponse,
    CountEventsRequest,
    CountEventsResponse,
    DeleteSessionRequest,
    DeleteSessionResponse,
    EditRunRequest,
    EditRunResponse,
    EnqueueRunRequest,
    EnqueueRunResponse,
    ExecuteRequest,
    ExecuteResponse,
    ExportSessionRequest,
    ExportSessionResponse,
    FlushRequest,
    FlushResponse,
    GetActiveRunRequest,
    GetActiveRunResponse,
    GetCostSummaryRequest,
    GetCostSummaryResponse,
    GetEventsRequest,
    GetEventsResponse,
    GetLatestSequenceRequest,
    GetLatestSequenceResponse,
    GetRunRequest,
    GetRunResponse,
    GetSessionRequest,
    GetSessionResponse,
    GetSessionStatsRequest,
    GetSessionStatsResponse,
    GetUsageSummaryRequest,
    GetUsageSummaryResponse,
    HardDeleteExpiredSessionsRequest,
    HardDeleteExpiredSessionsResponse,
    HealthCheckRequest,
    HealthCheckResponse,
    ListOrphansRequest,
    ListOrphansResponse,
    ListRunsRequest,
    ListRunsResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    LoadStateRequest,
    LoadStateResponse,
    PersistStateRequest,
    PersistStateResponse,
    PruneSessionEventsRequest,
    PruneSessionEventsResponse,
    ReleaseIfEmptyRequest,
    ReleaseIfEmptyResponse,
    RenewClaimsRequest,
    RenewClaimsResponse,
    SaveRunRequest,
    SaveRunResponse,
    SaveSessionRequest,
    SaveSessionResponse,
    SearchEventsRequest,
    SearchEventsResponse,
    SearchRunsRequest,
    SearchRunsResponse,
    SearchSessionsRequest,
    SearchSessionsResponse,
    SetInterruptedRequest,
    SetInterruptedResponse,
    SoftDeleteExpiredSessionsRequest,
    SoftDeleteExpiredSessionsResponse,
    WatchEventsRequest,
    WatchEventsResponse,
)
from turndock.types.v1 import BackendSession, Event, Failure, ToolApprovalDecided, ToolApprovalRequested

# --- Backend ---------------------------------------------------------------------------------------------------------

TurnOutput = str | Event | Result | Failure | Paused
"""What a turn says: a `str` is a piece of text, `Result`, `Failure` and `Paused` are terminal."""


class Rejected(Exception):
    """Raised by `Backend.prompt` before anything else: the turn cannot run at all."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class CheckpointRejected(Exception):
    """Raised by `TurnContext.checkpoint`: the id was refused, and the turn has failed with `reason`.

    `not_current`, `unsupported_checkpoint`, `invalid_session_id` or `conflicting_session_id`. A backend lets it pass.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BackendLost(Exception):
    """Raised by a remote backend's `prompt`: the stream or the process broke in the middle of the turn."""


class BackendCrashed(Exception):
    """Raised by a remote backend's `prompt`: the backend's code raised, and its process reported so."""


class TurnContext(Protocol):
    """What a backend may ask for while its turn runs."""

    def accept(self, session: BackendSession) -> None:
        """Say which session holds after this turn. Optional; call it before the first yield. Default: unchanged."""

    async def checkpoint(self, provider_session_id: str) -> None:
        """Have the provider's name for the conversation stored now. Returns when it is durable.

        Raises `CheckpointRejected`.
        """

    async def approval(self, request: ToolApprovalRequested) -> ToolApprovalDecided:
        """Wait for a human decision. The turn's watchdog rests meanwhile."""
        ...


BACKEND_OPTIONS = ("interrupt", "checkpoint_session", "update_session", "resume_session")
"""Names of the optional calls, which are also names of capabilities."""


class Backend(ABC):
    """Produces turns. Subclass it; override the optional calls you offer."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of the optional calls that are offered: those a subclass overrides."""
        own = type(self)
        return frozenset(name for name in BACKEND_OPTIONS if getattr(own, name) is not getattr(Backend, name))

    @abstractmethod
    async def start_session(self, request: StartSessionRequest) -> StartSessionResponse:
        """Make what one agent's conversation needs. Raise `TurndockError` when that is not possible."""

    @abstractmethod
    def prompt(
        self, request: PromptRequest, turn: TurnContext
    ) -> AsyncIterator[TurnOutput | list[TurnOutput]]:
        """Run one turn: an async generator of what happens, ending with one terminal.

        Leaving the generator (cancellation, `aclose`) ends the turn's work. Raise `Rejected` first if the turn cannot
        run at all. A list is several outputs that are ready at once.
        """

    @abstractmethod
    async def terminate_session(self, request: TerminateSessionRequest) -> TerminateSessionResponse:
        """Release what a session holds. Repeatable."""

    async def interrupt(self, request: InterruptRequest) -> InterruptResponse:
        """Stop a turn's work and return when it has stopped. Optional: cancellation follows in any case."""
        raise not_offered("Backend.Interrupt")

    async def checkpoint_session(self, request: CheckpointSessionRequest) -> CheckpointSessionResponse:
        """The session with an accepted checkpoint. Optional: without it checkpoints are refused."""
        raise not_offered("Backend.CheckpointSession")

    async def update_session(self, request: UpdateSessionRequest) -> UpdateSessionResponse:
        """The session with a turn's result folded in. Optional."""
        raise not_offered("Backend.UpdateSession")

    async def resume_session(self, request: ResumeSessionRequest) -> ResumeSessionResponse:
        """Reattach to a conversation. Optional. Raise NOT_FOUND when it is gone."""
        raise not_offered("Backend.ResumeSession")


# --- Behavior --------------------------------------------------------------------------------------------------------

BEHAVIOR_OPTIONS = (
    "handle_error",
    "handle_event",
    "handle_stream_event",
    "pre_run",
    "pre_turn",
    "pre_tool",
    "post_turn",
    "post_run",
    "terminate_agent",
)
"""Names of the optional calls, which are also names of capabilities."""


class Behavior(ABC):
    """Decides what an agent does between turns. Subclass it; override the optional calls you offer.

    A behavior is stateless: the agent's state travels in `state_json` of each request, and in the answer when it
    changed. See `protos/turndock/behavior/v1/behavior.proto` for when each call is made.
    """

    @property
    def capabilities(self) -> frozenset[str]:
        """Names of the optional calls that are offered: those a subclass overrides."""
        own = type(self)
        return frozenset(
            name for name in BEHAVIOR_OPTIONS if getattr(own, name) is not getattr(Behavior, name)
        )

    @abstractmethod
    async def init_agent(self, request: InitAgentRequest) -> InitAgentResponse:
        """The new agent's state and the backend configuration it wants."""

    @abstractmethod
    async def handle_response(self, request: HandleResponseRequest) -> HandleResponseResponse:
        """Decide what follows a turn that succeeded."""

    async def handle_error(self, request: HandleErrorRequest) -> HandleErrorResponse:
        """Decide what follows a turn that failed. Optional."""
        raise not_offered("Behavior.HandleError")

    async def handle_event(self, request: HandleEventRequest) -> HandleEventResponse:
        """Take a notification in. Optional."""
        raise not_offered("Behavior.HandleEvent")

    async def handle_stream_event(self, request: HandleStreamEventRequest) -> HandleStreamEventResponse:
        """See a turn's events as they come. Optional."""
        raise not_offered("Behavior.HandleStreamEvent")

    async def pre_run(self, request: PreRunRequest) -> PreRunResponse:
        """Prepare the agent before its first turn. Optional."""
        raise not_offered("Behavior.PreRun")

    async def pre_turn(self, request: PreTurnRequest) -> PreTurnResponse:
        """Let a turn begin, change its prompt, or refuse it. Optional."""
        raise not_offered("Behavior.PreTurn")

    async def pre_tool(self, request: PreToolRequest) -> PreToolResponse:
        """Let a tool call that the backend asks leave for run, change it, or refuse it. Optional."""
        raise not_offered("Behavior.PreTool")

    async def post_turn(self, request: PostTurnRequest) -> PostTurnResponse:
        """Look back at a turn. Optional; cannot change what follows."""
        raise not_offered("Behavior.PostTurn")

    async def post_run(self, request: PostRunRequest) -> PostRunResponse:
        """The agent halted. Optional."""
        raise not_offered("Behavior.PostRun")

    async def terminate_agent(self, request: TerminateAgentRequest) -> TerminateAgentResponse:
        """The agent ends. Optional."""
        raise not_offered("Behavior.TerminateAgent")


# --- SessionStore ----------------------------------------------------------------------------------------------------


class SessionStore(Protocol):
    """Keeps sessions, runs and events. See `protos/turndock/store/v1/session_store.proto` for every promise."""

    async def save_session(self, request: SaveSessionRequest) -> SaveSessionResponse: ...
    async def get_session(self, request: GetSessionRequest) -> GetSessionResponse: ...
    async def list_sessions(self, request: ListSessionsRequest) -> ListSessionsResponse: ...
    async def delete_session(self, request: DeleteSessionRequest) -> DeleteSessionResponse: ...
    async def save_run(self, request: SaveRunRequest) -> SaveRunResponse: ...
    async def get_run(self, request: GetRunRequest) -> GetRunResponse: ...
    async def list_runs(self, request: ListRunsRequest) -> ListRunsResponse: ...
    async def get_active_run(self, request: GetActiveRunRequest) -> GetActiveRunResponse: ...
    async def append_event(self, request: AppendEventRequest) -> AppendEventResponse: ...
    async def append_event_with_sequence(
        self, request: AppendEventWithSequenceRequest
    ) -> AppendEventWithSequenceResponse: ...
    async def append_events(self, request: AppendEventsRequest) -> AppendEventsResponse: ...
    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse: ...
    async def get_latest_sequence(self, request: GetLatestSequenceRequest) -> GetLatestSequenceResponse: ...
    async def flush(self, request: FlushRequest) -> FlushResponse: ...


@runtime_checkable
class Mailbox(Protocol):
    """Ability of a SessionStore: mailboxes and ownership, each call one transaction."""

    async def enqueue_run(self, request: EnqueueRunRequest) -> EnqueueRunResponse: ...
    async def claim_agent(self, request: ClaimAgentRequest) -> ClaimAgentResponse: ...
    async def renew_claims(self, request: RenewClaimsRequest) -> RenewClaimsResponse: ...
    async def release_if_empty(self, request: ReleaseIfEmptyRequest) -> ReleaseIfEmptyResponse: ...
    async def edit_run(self, request: EditRunRequest) -> EditRunResponse: ...
    async def cancel_run(self, request: CancelRunRequest) -> CancelRunResponse: ...
    async def list_orphans(self, request: ListOrphansRequest) -> ListOrphansResponse: ...


@runtime_checkable
class EventWatcher(Protocol):
    """Ability of a SessionStore: a stream of committed events."""

    def watch_events(self, request: WatchEventsRequest) -> AsyncIterator[WatchEventsResponse]: ...


# --- ArtifactStore ---------------------------------------------------------------------------------------------------


class ArtifactStore(Protocol):
    """Keeps bytes by key. See `protos/turndock/store/v1/artifact_store.proto` for every promise."""

    async def put(self, requests: AsyncIterator[ArtifactStorePutRequest]) -> ArtifactStorePutResponse: ...
    def get(self, request: ArtifactStoreGetRequest) -> AsyncIterator[ArtifactStoreGetResponse]: ...
    async def delete(self, request: ArtifactStoreDeleteRequest) -> ArtifactStoreDeleteResponse: ...
    async def head(self, request: ArtifactStoreHeadRequest) -> ArtifactStoreHeadResponse: ...
    async def list(self, request: ArtifactStoreListRequest) -> ArtifactStoreListResponse: ...


# --- Query, Maintenance ----------------------------------------------------------------------------------------------


class Query(Protocol):
    """Searches what a SessionStore keeps. See `protos/turndock/store/v1/query.proto` for every promise."""

    async def search_sessions(self, request: SearchSessionsRequest) -> SearchSessionsResponse: ...
    async def get_session_stats(self, request: GetSessionStatsRequest) -> GetSessionStatsResponse: ...
    async def search_runs(self, request: SearchRunsRequest) -> SearchRunsResponse: ...
    async def get_usage_summary(self, request: GetUsageSummaryRequest) -> GetUsageSummaryResponse: ...
    async def get_cost_summary(self, request: GetCostSummaryRequest) -> GetCostSummaryResponse: ...
    async def search_events(self, request: SearchEventsRequest) -> SearchEventsResponse: ...
    async def count_events(self, request: CountEventsRequest) -> CountEventsResponse: ...
    def export_session(self, request: ExportSessionRequest) -> AsyncIterator[ExportSessionResponse]: ...


class Maintenance(Protocol):
    """Applies a retention policy. See `protos/turndock/store/v1/maintenance.proto` for every promise."""

    async def execute(self, request: ExecuteRequest) -> ExecuteResponse: ...
    async def prune_session_events(
        self, request: PruneSessionEventsRequest
    ) -> PruneSessionEventsResponse: ...
    async def soft_delete_expired_sessions(
        self, request: SoftDeleteExpiredSessionsRequest
    ) -> SoftDeleteExpiredSessionsResponse: ...
    async def hard_delete_expired_sessions(
        self, request: HardDeleteExpiredSessionsRequest
    ) -> HardDeleteExpiredSessionsResponse: ...
    async def clean_orphaned_artifacts(
        self, request: CleanOrphanedArtifactsRequest
    ) -> CleanOrphanedArtifactsResponse: ...
    async def health_check(self, request: HealthCheckRequest) -> HealthCheckResponse: ...


# --- AgentPersistence ------------------------------------------------------------------------------------------------


class AgentPersistence(Protocol):
    """Keeps snapshots of agents. See `protos/turndock/store/v1/agent_persistence.proto` for every promise."""

    async def persist_state(self, request: PersistStateRequest) -> PersistStateResponse: ...
    async def load_state(self, request: LoadStateRequest) -> LoadStateResponse: ...


@runtime_checkable
class InterruptedFlag(Protocol):
    """Ability of an AgentPersistence: whether a conversation waits for an approval, where it can be read cheaply."""

    async def set_interrupted(self, request: SetInterruptedRequest) -> SetInterruptedResponse: ...
