"""Session stores that break one sentence of their contract each, and the case that must find out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from support.session_log_mutants import (
    DropsWhatItDoesNotKnow,
    EndsWaitsWithAnError,
    GivesUpTheTurnBeforeItWrites,
    IgnoresExpected,
    IgnoresRequestIds,
    IgnoresStrictDuplicates,
    KeepsPresetNumbers,
    LimitsBeforeItFilters,
    LowersTheCounter,
    MissesTheActiveRun,
    MissesWakeUps,
    PagesByOffset,
    ParsesJson,
    SortsByTime,
    StoresBatchesOneByOne,
    StoresDuplicates,
    StreamsFromTheCursorOn,
    StreamsOnAcrossLives,
    TakesBoundsAsInclusive,
    UsesNumbersForFailures,
    WaitsUnderALock,
    WakesForAnything,
    changed,
)
from turndock.errors import TurndockError
from turndock.store.v1 import (
    ClaimAgentRequest,
    ClaimAgentResponse,
    DeleteSessionRequest,
    DeleteSessionResponse,
    EnqueueRunRequest,
    EnqueueRunResponse,
    FlushRequest,
    FlushResponse,
    GetEventsRequest,
    GetEventsResponse,
    GetSessionRequest,
    GetSessionResponse,
    ListOrphansRequest,
    ListOrphansResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    ReleaseIfEmptyRequest,
    ReleaseIfEmptyResponse,
    SaveRunRequest,
    SaveRunResponse,
    SaveSessionRequest,
    SaveSessionResponse,
)
from turndock.types.v1 import RunStatus, Scope, Session
from turndock_server.stores.memory import MemorySessionStore
from turndock_server.stores.memory.database import Key, Record
from turndock_server.stores.memory.store import OwnersWrite

R = TypeVar("R", bound=Message)


# --- Scopes ----------------------------------------------------------------------------------------------------------


class TellsWhatIsAnothers(MemorySessionStore):
    """What belongs to another scope is PERMISSION_DENIED."""

    async def get_session(self, request: GetSessionRequest) -> GetSessionResponse:
        try:
            return await super().get_session(request)
        except TurndockError:
            if any(session_id == request.session_id for _, session_id in self._database.records):
                raise TurndockError("PERMISSION_DENIED", "the session is another tenant's") from None
            raise


class HintsAtWhatIsAnothers(MemorySessionStore):
    """What belongs to another scope is NOT_FOUND with another text."""

    async def get_session(self, request: GetSessionRequest) -> GetSessionResponse:
        try:
            return await super().get_session(request)
        except TurndockError as error:
            if any(session_id == request.session_id for _, session_id in self._database.records):
                raise TurndockError(error.reason, f"{error.message} in this scope") from None
            raise


class LooksInEveryScope(MemorySessionStore):
    async def get_events(self, request: GetEventsRequest) -> GetEventsResponse:
        holders = [
            tenant for tenant, session_id in self._database.records if session_id == request.session_id
        ]
        if holders and holders[0]:
            scope = Scope(tenant=holders[0])
            request = changed(request, lambda copy: copy.scope.CopyFrom(scope))
        return await super().get_events(request)


class TakesUnscopedForAll(MemorySessionStore):
    async def list_sessions(self, request: ListSessionsRequest) -> ListSessionsResponse:
        if request.HasField("scope"):
            return await super().list_sessions(request)
        return await super().list_sessions(changed(request, lambda copy: setattr(copy, "every_scope", True)))


class IgnoresCase(MemorySessionStore):
    async def save_session(self, request: SaveSessionRequest) -> SaveSessionResponse:
        def lower(copy: SaveSessionRequest) -> None:
            copy.session.id = copy.session.id.lower()

        return await super().save_session(changed(request, lower))

    async def get_session(self, request: GetSessionRequest) -> GetSessionResponse:
        lowered = request.session_id.lower()
        return await super().get_session(changed(request, lambda copy: setattr(copy, "session_id", lowered)))


# --- Saving, deleting, flushing --------------------------------------------------------------------------------------


class KeepsTheCallersMessage(MemorySessionStore):
    """What the caller handed over and what is stored are one object."""

    async def save_session(self, request: SaveSessionRequest) -> SaveSessionResponse:
        response = await super().save_session(request)
        self._database.records[request.scope.tenant, request.session.id].session = request.session
        return response


class HandsOutItsOwnMessage(MemorySessionStore):
    """Every caller of GetSession gets the same object."""

    def __init__(self) -> None:
        super().__init__()
        self._answers: dict[bytes, GetSessionResponse] = {}

    async def get_session(self, request: GetSessionRequest) -> GetSessionResponse:
        response = await super().get_session(request)
        return self._answers.setdefault(response.SerializeToString(), response)


class MergesSaves(MemorySessionStore):
    """Fields that a save leaves empty stay as they were."""

    async def save_session(self, request: SaveSessionRequest) -> SaveSessionResponse:
        record = self._database.records.get((request.scope.tenant, request.session.id))
        merged = Session()
        if record is not None and record.session is not None:
            merged.CopyFrom(record.session)
            merged.ClearField("tags")
        merged.MergeFrom(request.session)
        return await super().save_session(changed(request, lambda copy: copy.session.CopyFrom(merged)))


class IgnoresExpectedStatus(MemorySessionStore):
    async def save_run(self, request: SaveRunRequest) -> SaveRunResponse:
        return await super().save_run(changed(request, lambda copy: copy.ClearField("expected_status")))


class DeletesTheRowOnly(MemorySessionStore):
    """DeleteSession leaves runs, events and counter."""

    async def delete_session(self, request: DeleteSessionRequest) -> DeleteSessionResponse:
        record = self._database.records.get((request.scope.tenant, request.session_id))
        if record is not None:
            record.session = None
        return DeleteSessionResponse()


class RepeatsIncarnations(MemorySessionStore):
    """A session made again continues the life of the deleted one."""

    async def delete_session(self, request: DeleteSessionRequest) -> DeleteSessionResponse:
        key = (request.scope.tenant, request.session_id)
        record = self._database.records.get(key)
        response = await super().delete_session(request)
        if record is not None:
            self._database.keep(Record(key, incarnation=record.incarnation))
        return response


class FlushesPartByPart(MemorySessionStore):
    """A flush that fails leaves its session and its run."""

    async def flush(self, request: FlushRequest) -> FlushResponse:
        if request.HasField("session"):
            await self.save_session(SaveSessionRequest(scope=request.scope, session=request.session))
        if request.HasField("run"):
            await self.save_run(SaveRunRequest(scope=request.scope, run=request.run))
        return await super().flush(request)


class FlushesInTwoSteps(MemorySessionStore):
    """A reader may see a flush's run before its events."""

    async def flush(self, request: FlushRequest) -> FlushResponse:
        await self.save_run(SaveRunRequest(scope=request.scope, run=request.run))
        await asyncio.sleep(0)
        return await super().flush(request)


# --- Ownership and mailbox -------------------------------------------------------------------------------------------


class IgnoresFences(MemorySessionStore):
    def _write(self, request: OwnersWrite, keys: Sequence[Key], write: Callable[[], R]) -> R:
        return self._once(request, keys[0] if keys else None, write)


class LetsAnybodyWrite(MemorySessionStore):
    """A write without a fence is as good as the owner's."""

    def _write(self, request: OwnersWrite, keys: Sequence[Key], write: Callable[[], R]) -> R:
        if request.HasField("fence"):
            return super()._write(request, keys, write)
        return self._once(request, keys[0] if keys else None, write)


class GrantsEveryClaim(MemorySessionStore):
    async def claim_agent(self, request: ClaimAgentRequest) -> ClaimAgentResponse:
        return await super().claim_agent(changed(request, lambda copy: setattr(copy, "sole_host", True)))


class RepeatsEpochs(MemorySessionStore):
    """A deleted session's epochs are granted again."""

    async def delete_session(self, request: DeleteSessionRequest) -> DeleteSessionResponse:
        response = await super().delete_session(request)
        self._database.ownership((request.scope.tenant, request.session_id)).epoch = 0
        return response


class CountsBeforeItWrites(MemorySessionStore):
    """Looks whether there is room, lets others go first, and then writes."""

    async def enqueue_run(self, request: EnqueueRunRequest) -> EnqueueRunResponse:
        pending = self._database.record((request.scope.tenant, request.run.session_id)).pending()
        await asyncio.sleep(0)
        if len(pending) < request.limits.max_count:
            request = changed(request, lambda copy: copy.ClearField("limits"))
        return await super().enqueue_run(request)


class LooksBeforeItReleases(MemorySessionStore):
    """Looks whether something waits, lets others go first, and then gives the claim up."""

    async def release_if_empty(self, request: ReleaseIfEmptyRequest) -> ReleaseIfEmptyResponse:
        if self._database.record((request.scope.tenant, request.session_id)).pending():
            return await super().release_if_empty(request)
        await asyncio.sleep(0)
        return await super().release_if_empty(changed(request, lambda copy: setattr(copy, "force", True)))


class DispatchesTheHalted(MemorySessionStore):
    """What waits in a halted session is work like any other."""

    async def list_orphans(self, request: ListOrphansRequest) -> ListOrphansResponse:
        response = await super().list_orphans(request)
        listed = {(session.scope.tenant, session.id) for session in response.sessions}
        for record in self._database.records.values():
            session = record.visible_session()
            if session is not None and record.pending() and record.key not in listed:
                response.sessions.append(session)
        return response


class WakesThePaused(MemorySessionStore):
    """A turn that waits for approvals is work like any other."""

    async def list_orphans(self, request: ListOrphansRequest) -> ListOrphansResponse:
        response = await super().list_orphans(request)
        listed = {(session.scope.tenant, session.id) for session in response.sessions}
        for record in self._database.records.values():
            session = record.visible_session()
            if session is not None and record.running() and record.key not in listed:
                response.sessions.append(session)
        return response


class RunsRetriesAgain(MemorySessionStore):
    """A run that is enqueued again waits again."""

    async def enqueue_run(self, request: EnqueueRunRequest) -> EnqueueRunResponse:
        record = self._database.record((request.scope.tenant, request.run.session_id))
        known = record.runs.get(request.run.id)
        if known is not None and known.status != RunStatus.RUN_STATUS_PENDING:
            del record.runs[request.run.id]
        return await super().enqueue_run(request)


@dataclass(frozen=True)
class Mutant:
    store: type[MemorySessionStore]
    fails: str
    """Name of the case that must find out."""


MUTANTS = (
    Mutant(UsesNumbersForFailures, "a_batch_with_one_bad_event_stores_nothing"),
    Mutant(StoresDuplicates, "a_duplicate_id_returns_the_stored_event"),
    Mutant(StoresDuplicates, "a_retried_batch_gets_its_old_numbers"),
    Mutant(StoresBatchesOneByOne, "a_batch_with_one_bad_event_stores_nothing"),
    Mutant(StoresBatchesOneByOne, "strict_duplicates_refuses_another_payload"),
    Mutant(KeepsPresetNumbers, "what_the_store_sets_is_not_the_writers"),
    Mutant(IgnoresExpected, "a_condition_on_the_log_is_checked"),
    Mutant(IgnoresStrictDuplicates, "strict_duplicates_refuses_another_payload"),
    Mutant(IgnoresRequestIds, "a_repeated_save_does_not_undo_a_later_one"),
    Mutant(GivesUpTheTurnBeforeItWrites, "retries_at_the_same_time_store_one"),
    Mutant(DropsWhatItDoesNotKnow, "what_a_newer_writer_sends_is_kept"),
    Mutant(ParsesJson, "json_is_kept_as_text"),
    Mutant(TakesBoundsAsInclusive, "bounds_are_exclusive_and_filters_combine"),
    Mutant(LimitsBeforeItFilters, "bounds_are_exclusive_and_filters_combine"),
    Mutant(SortsByTime, "order_is_by_number_and_by_nothing_else"),
    Mutant(LowersTheCounter, "saving_a_session_keeps_what_is_the_stores"),
    Mutant(MissesTheActiveRun, "the_active_run_is_the_running_one"),
    Mutant(PagesByOffset, "paging_passes_over_no_untouched_session"),
    Mutant(PagesByOffset, "a_cursor_fits_only_its_own_list"),
    Mutant(EndsWaitsWithAnError, "a_wait_without_an_event_ends_ok_and_empty"),
    Mutant(WakesForAnything, "a_wait_is_not_ended_by_what_does_not_match"),
    Mutant(WaitsUnderALock, "a_waiting_reader_holds_up_nobody"),
    Mutant(MissesWakeUps, "a_wait_ends_with_the_first_matching_event"),
    Mutant(StreamsFromTheCursorOn, "a_stream_replays_and_goes_on_live"),
    Mutant(StreamsOnAcrossLives, "a_stream_goes_on_with_the_log_of_the_next_life"),
    Mutant(TellsWhatIsAnothers, "what_is_anothers_reads_like_what_is_not_there"),
    Mutant(HintsAtWhatIsAnothers, "what_is_anothers_reads_like_what_is_not_there"),
    Mutant(LooksInEveryScope, "what_is_anothers_reads_like_what_is_not_there"),
    Mutant(TakesUnscopedForAll, "the_unscoped_partition_is_one_of_its_own"),
    Mutant(IgnoresCase, "ids_are_names_and_nothing_else"),
    Mutant(KeepsTheCallersMessage, "a_message_handed_over_is_the_stores"),
    Mutant(HandsOutItsOwnMessage, "an_answer_is_the_callers"),
    Mutant(MergesSaves, "saving_a_session_replaces_every_field_of_the_writers"),
    Mutant(IgnoresExpectedStatus, "a_run_is_saved_only_from_the_expected_status"),
    Mutant(DeletesTheRowOnly, "deleting_a_session_takes_everything_of_it"),
    Mutant(RepeatsIncarnations, "a_session_made_again_is_another_life"),
    Mutant(FlushesPartByPart, "a_flush_with_a_bad_event_stores_nothing"),
    Mutant(FlushesPartByPart, "a_failed_flush_leaves_everything_as_it_was"),
    Mutant(FlushesInTwoSteps, "a_reader_sees_a_flush_whole"),
    Mutant(IgnoresFences, "a_write_below_the_highest_epoch_seen_is_fenced"),
    Mutant(LetsAnybodyWrite, "a_claimed_session_is_its_owners_to_write"),
    Mutant(GrantsEveryClaim, "a_claim_holds_until_its_lease_ends"),
    Mutant(RepeatsEpochs, "an_owner_of_an_earlier_life_stays_fenced"),
    Mutant(CountsBeforeItWrites, "twenty_parallel_runs_meet_a_limit_of_three"),
    Mutant(LooksBeforeItReleases, "no_run_falls_between_enqueue_and_release"),
    Mutant(DispatchesTheHalted, "what_waits_in_a_halted_session_is_no_work"),
    Mutant(WakesThePaused, "a_paused_session_has_no_work_before_its_time"),
    Mutant(RunsRetriesAgain, "a_known_run_is_returned_as_it_stands"),
)
