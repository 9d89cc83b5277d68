"""Agent persistences that break one sentence of their contract each, and the case that must find out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from turndock.errors import TurndockError
from turndock.store.v1 import (
    LoadStateRequest,
    LoadStateResponse,
    PersistStateRequest,
    PersistStateResponse,
    SetInterruptedRequest,
    SetInterruptedResponse,
    Snapshot,
)
from turndock_server.stores.memory_snapshots import MemoryAgentPersistence

M = TypeVar("M", bound=Message)


def _changed(message: M, change: Callable[[M], object]) -> M:
    copy = type(message)()
    copy.CopyFrom(message)
    change(copy)
    return copy


class BeginsFresh(MemoryAgentPersistence):
    """Answers an empty snapshot where there is none."""

    async def load_state(self, request: LoadStateRequest) -> LoadStateResponse:
        try:
            return await super().load_state(request)
        except TurndockError as error:
            if error.reason != "NOT_FOUND":
                raise
            return LoadStateResponse(snapshot=Snapshot())


class _ChangesSaves(MemoryAgentPersistence):
    def _change(self, request: PersistStateRequest) -> None:
        raise NotImplementedError

    async def persist_state(self, request: PersistStateRequest) -> PersistStateResponse:
        return await super().persist_state(_changed(request, self._change))


class KeepsTheStateOnly(_ChangesSaves):
    def _change(self, request: PersistStateRequest) -> None:
        for field, _ in list(request.snapshot.ListFields()):
            if field.name not in {"version", "state_json", "serialized_at_us"}:
                request.snapshot.ClearField(field.name)  # type: ignore[arg-type]  # by its name at run time


class CountsInFloats(_ChangesSaves):
    """Takes JSON's numbers for floats."""

    def _change(self, request: PersistStateRequest) -> None:
        value = json.loads(request.snapshot.state_json, parse_int=float)
        request.snapshot.state_json = json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class KnowsOneVersion(_ChangesSaves):
    def _change(self, request: PersistStateRequest) -> None:
        request.snapshot.version = min(request.snapshot.version, 1)


class ForgetsRetryTokens(_ChangesSaves):
    def _change(self, request: PersistStateRequest) -> None:
        request.request_id = ""


class IgnoresEpochs(_ChangesSaves):
    def _change(self, request: PersistStateRequest) -> None:
        if request.fence.epoch:
            request.ClearField("fence")


class KeysByAgent(_ChangesSaves):
    """One snapshot for each agent of a conversation."""

    def _change(self, request: PersistStateRequest) -> None:
        request.conversation_id = request.conversation_id and f"{request.conversation_id}/{request.agent_id}"

    async def load_state(self, request: LoadStateRequest) -> LoadStateResponse:
        def change(copy: LoadStateRequest) -> None:
            copy.conversation_id = copy.conversation_id and f"{copy.conversation_id}/{copy.agent_id}"

        return await super().load_state(_changed(request, change))


class SharesOnePartition(MemoryAgentPersistence):
    """Looks for a conversation in every partition when it is not in the caller's."""

    async def load_state(self, request: LoadStateRequest) -> LoadStateResponse:
        try:
            return await super().load_state(request)
        except TurndockError:
            owners = [
                partition
                for partition, (conversation_id, _) in self._conversations
                if partition and conversation_id == request.conversation_id
            ]
            if owners:
                return await super().load_state(
                    _changed(request, lambda copy: setattr(copy.scope, "tenant", owners[0]))
                )
            raise


class KeepsTheFirst(MemoryAgentPersistence):
    """Inserts where it should replace."""

    async def persist_state(self, request: PersistStateRequest) -> PersistStateResponse:
        load = LoadStateRequest(agent_id=request.agent_id, conversation_id=request.conversation_id)
        if request.HasField("scope"):
            load.scope.CopyFrom(request.scope)
        try:
            await super().load_state(load)
        except TurndockError:
            return await super().persist_state(request)
        return PersistStateResponse()


class FlagsWhatIsThere(MemoryAgentPersistence):
    """Finds a flag without a snapshot an error."""

    async def set_interrupted(self, request: SetInterruptedRequest) -> SetInterruptedResponse:
        load = LoadStateRequest(agent_id=request.agent_id, conversation_id=request.conversation_id)
        if request.HasField("scope"):
            load.scope.CopyFrom(request.scope)
        await super().load_state(load)
        return await super().set_interrupted(request)


class FlagsTheSnapshot(MemoryAgentPersistence):
    """Writes the flag into the snapshot."""

    async def set_interrupted(self, request: SetInterruptedRequest) -> SetInterruptedResponse:
        answer = await super().set_interrupted(request)
        for conversation in self._conversations.values():
            if conversation.saved is not None:
                saved = LoadStateResponse.FromString(conversation.saved)
                saved.snapshot.interrupted = request.interrupted
                conversation.saved = saved.SerializeToString()
        return answer


class TakesAnything(MemoryAgentPersistence):
    """Stores first and looks afterwards."""

    async def persist_state(self, request: PersistStateRequest) -> PersistStateResponse:
        known = self._conversations.get((request.scope.tenant, (request.conversation_id, "")))
        if known is not None:
            known.saved = LoadStateResponse(snapshot=request.snapshot).SerializeToString()
        return await super().persist_state(request)


class TidiesTitles(MemoryAgentPersistence):
    """Changes the message it was given."""

    async def persist_state(self, request: PersistStateRequest) -> PersistStateResponse:
        answer = await super().persist_state(request)
        request.snapshot.title = request.snapshot.title.removesuffix("✓")
        return answer


@dataclass(frozen=True)
class Mutant:
    persistence: type[MemoryAgentPersistence]
    fails: str
    """The case that says what is wrong."""


MUTANTS = (
    Mutant(BeginsFresh, "what_was_never_saved_is_not_found"),
    Mutant(KeepsTheStateOnly, "a_snapshot_is_loaded_as_it_was_saved"),
    Mutant(KeepsTheFirst, "the_last_snapshot_counts"),
    Mutant(KnowsOneVersion, "what_a_store_does_not_know_is_passed_on"),
    Mutant(CountsInFloats, "numbers_and_texts_keep_every_digit"),
    Mutant(KeysByAgent, "a_snapshot_belongs_to_its_conversation"),
    Mutant(SharesOnePartition, "partitions_do_not_see_each_other"),
    Mutant(ForgetsRetryTokens, "a_repeated_save_does_not_undo_a_later_one"),
    Mutant(IgnoresEpochs, "an_owner_that_was_replaced_is_fenced"),
    Mutant(TakesAnything, "a_snapshot_that_is_no_json_is_refused"),
    Mutant(FlagsWhatIsThere, "a_flag_needs_no_snapshot"),
    Mutant(FlagsTheSnapshot, "a_flag_leaves_the_snapshot_alone"),
    Mutant(TidiesTitles, "a_message_handed_over_is_left_alone"),
)
