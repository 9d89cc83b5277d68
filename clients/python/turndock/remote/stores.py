"""The `store.v1` contracts over a channel."""

from __future__ import annotations

from collections.abc import Iterable

import grpc.aio

from turndock.remote.calls import DEFAULT_TIMEOUT_S, Remote, Stream, Unary, Upload
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
    agent_persistence_pb2,
    artifact_store_pb2,
    maintenance_pb2,
    query_pb2,
    session_store_pb2,
)


class RemotePlainSessionStore(Remote, service=session_store_pb2.DESCRIPTOR.services_by_name["SessionStore"]):
    """A session store with no more than the required calls. `ports.SessionStore`."""

    save_session: Unary[SaveSessionRequest, SaveSessionResponse]
    get_session: Unary[GetSessionRequest, GetSessionResponse]
    list_sessions: Unary[ListSessionsRequest, ListSessionsResponse]
    delete_session: Unary[DeleteSessionRequest, DeleteSessionResponse]
    save_run: Unary[SaveRunRequest, SaveRunResponse]
    get_run: Unary[GetRunRequest, GetRunResponse]
    list_runs: Unary[ListRunsRequest, ListRunsResponse]
    get_active_run: Unary[GetActiveRunRequest, GetActiveRunResponse]
    append_event: Unary[AppendEventRequest, AppendEventResponse]
    append_event_with_sequence: Unary[AppendEventWithSequenceRequest, AppendEventWithSequenceResponse]
    append_events: Unary[AppendEventsRequest, AppendEventsResponse]
    get_events: Unary[GetEventsRequest, GetEventsResponse]
    get_latest_sequence: Unary[GetLatestSequenceRequest, GetLatestSequenceResponse]
    flush: Unary[FlushRequest, FlushResponse]


class RemoteMailboxStore(RemotePlainSessionStore):
    """A session store with mailboxes. `ports.SessionStore` and `ports.Mailbox`."""

    enqueue_run: Unary[EnqueueRunRequest, EnqueueRunResponse]
    claim_agent: Unary[ClaimAgentRequest, ClaimAgentResponse]
    renew_claims: Unary[RenewClaimsRequest, RenewClaimsResponse]
    release_if_empty: Unary[ReleaseIfEmptyRequest, ReleaseIfEmptyResponse]
    edit_run: Unary[EditRunRequest, EditRunResponse]
    cancel_run: Unary[CancelRunRequest, CancelRunResponse]
    list_orphans: Unary[ListOrphansRequest, ListOrphansResponse]


class RemoteWatchedStore(RemotePlainSessionStore):
    """A session store without mailboxes whose events can be watched."""

    watch_events: Stream[WatchEventsRequest, WatchEventsResponse]


class RemoteSessionStore(RemoteMailboxStore, RemoteWatchedStore):
    """A session store with every ability. `ports.SessionStore`, `ports.Mailbox` and `ports.EventWatcher`."""


class RemoteArtifactStore(Remote, service=artifact_store_pb2.DESCRIPTOR.services_by_name["ArtifactStore"]):
    """`ports.ArtifactStore`."""

    put: Upload[ArtifactStorePutRequest, ArtifactStorePutResponse]
    get: Stream[ArtifactStoreGetRequest, ArtifactStoreGetResponse]
    delete: Unary[ArtifactStoreDeleteRequest, ArtifactStoreDeleteResponse]
    head: Unary[ArtifactStoreHeadRequest, ArtifactStoreHeadResponse]
    list: Unary[ArtifactStoreListRequest, ArtifactStoreListResponse]


class RemoteQuery(Remote, service=query_pb2.DESCRIPTOR.services_by_name["Query"]):
    """`ports.Query`."""

    search_sessions: Unary[SearchSessionsRequest, SearchSessionsResponse]
    get_session_stats: Unary[GetSessionStatsRequest, GetSessionStatsResponse]
    search_runs: Unary[SearchRunsRequest, SearchRunsResponse]
    get_usage_summary: Unary[GetUsageSummaryRequest, GetUsageSummaryResponse]
    get_cost_summary: Unary[GetCostSummaryRequest, GetCostSummaryResponse]
    search_events: Unary[SearchEventsRequest, SearchEventsResponse]
    count_events: Unary[CountEventsRequest, CountEventsResponse]
    export_session: Stream[ExportSessionRequest, ExportSessionResponse]


class RemoteMaintenance(Remote, service=maintenance_pb2.DESCRIPTOR.services_by_name["Maintenance"]):
    """`ports.Maintenance`. Its calls may take long; give it a `timeout` to suit."""

    execute: Unary[ExecuteRequest, ExecuteResponse]
    prune_session_events: Unary[PruneSessionEventsRequest, PruneSessionEventsResponse]
    soft_delete_expired_sessions: Unary[SoftDeleteExpiredSessionsRequest, SoftDeleteExpiredSessionsResponse]
    hard_delete_expired_sessions: Unary[HardDeleteExpiredSessionsRequest, HardDeleteExpiredSessionsResponse]
    clean_orphaned_artifacts: Unary[CleanOrphanedArtifactsRequest, CleanOrphanedArtifactsResponse]
    health_check: Unary[HealthCheckRequest, HealthCheckResponse]


class RemoteAgentPersistence(
    Remote, service=agent_persistence_pb2.DESCRIPTOR.services_by_name["AgentPersistence"]
):
    """`ports.AgentPersistence` and `ports.InterruptedFlag`."""

    persist_state: Unary[PersistStateRequest, PersistStateResponse]
    load_state: Unary[LoadStateRequest, LoadStateResponse]
    set_interrupted: Unary[SetInterruptedRequest, SetInterruptedResponse]


def remote_session_store(
    channel: grpc.aio.Channel, capabilities: Iterable[str], *, timeout: float = DEFAULT_TIMEOUT_S
) -> RemotePlainSessionStore:
    """The session store with just the abilities its description names, so that `isinstance` tells them."""
    names = frozenset(capabilities)
    store = {
        (False, False): RemotePlainSessionStore,
        (True, False): RemoteMailboxStore,
        (False, True): RemoteWatchedStore,
        (True, True): RemoteSessionStore,
    }["mailbox" in names, "watch_events" in names]
    return store(channel, timeout=timeout)
