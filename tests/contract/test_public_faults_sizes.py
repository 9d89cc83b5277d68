"""PF-B29: what is too large for a message harms neither the turn nor whoever watches it."""

import hashlib

from support.harness import Harness, numbers, refused, types
from support.parts import event_bytes, gate, result, text
from turndock.store.v1 import ArtifactStoreGetRequest
from turndock.types.v1 import Cursor, Custom, Event
from turndock_server.core.offload import MAX_EVENT_BYTES
from turndock_server.stores.memory_artifacts import MemoryArtifactStore

LARGE = "x" * (5 << 20)


async def content_of(store: MemoryArtifactStore, key: str) -> bytes:
    parts = [part async for part in store.get(ArtifactStoreGetRequest(key=key))]
    return b"".join(part.chunk for part in parts)


async def test_PF_B29_an_event_of_5_MiB_is_stored_elsewhere_and_all_others_arrive(
    local_host: Harness,
) -> None:
    large = Event(custom=Custom(name="large", data_json=f'"{LARGE}"')).SerializeToString()
    # The script is the backend's own: a configuration of that size would be refused.
    small = [text("a"), text("b"), text("c")]
    scripts = [[*small, event_bytes(large), text("d"), text("e"), result()], [result("ok")]]
    local_host.backend = type(local_host.backend)(scripts)
    await local_host.dock_backend("large", local_host.backend)
    session_id = (await local_host.start(backend="large")).agent.session_id
    answer = await local_host.ask("x", request_id="r1")
    assert answer.response.text == "abcde"
    log = await local_host.log(run_id="r1")
    assert types(log)[2:] == [
        "message_streamed",
        "message_streamed",
        "message_streamed",
        "custom",
        "message_streamed",
        "message_streamed",
        "message_received",
        "run_completed",
    ]
    stub = log[5]
    assert stub.ByteSize() < 1024
    content = await content_of(local_host.artifacts, stub.offloaded.key)
    assert (len(content), hashlib.sha256(content).digest()) == (stub.offloaded.size, stub.offloaded.sha256)
    whole = Event.FromString(content)
    assert (whole.id, len(whole.custom.data_json)) == (stub.id, len(LARGE) + 2)
    # Watched with the default options, from the beginning and from just before it, again and again.
    head = log[-1].sequence
    for after in (0, stub.sequence - 1, stub.sequence - 1, stub.sequence):
        got = await local_host.watched(Cursor(session_id=session_id, after_sequence=after), upto=head)
        assert numbers(got) == list(range(after + 1, head + 1))
    assert (await local_host.ask("y")).response.text == "ok"


async def test_PF_B29_a_text_of_5_MiB_is_watched_and_answered(local_host: Harness) -> None:
    backend = type(local_host.backend)([[text("a"), text(LARGE), text("b"), result()], [result("ok")]])
    await local_host.dock_backend("large", backend)
    session_id = (await local_host.start(backend="large")).agent.session_id
    answer = await local_host.ask("x", request_id="r1")
    assert answer.response.text.startswith("axxx")
    assert len(answer.response.text) <= 1 << 20
    assert answer.response.text_cut
    log = await local_host.log(run_id="r1")
    assert [one.HasField("offloaded") for one in log] == [False, False, False, True, False, True, False]
    assert max(one.ByteSize() for one in log) <= MAX_EVENT_BYTES
    got = await local_host.watched(Cursor(session_id=session_id), upto=log[-1].sequence)
    assert got[2:] == log
    assert (await local_host.poll("r1", with_events=True)).response.text == answer.response.text
    assert (await local_host.ask("y")).response.text == "ok"


async def test_PF_B29_many_large_events_are_cut_into_messages(local_host: Harness) -> None:
    pieces = [text(letter * 900_000) for letter in "abcdefgh"]
    backend = type(local_host.backend)([[*pieces, gate("g"), *pieces, result("ok")]])
    await local_host.dock_backend("large", backend)
    session_id = (await local_host.start(backend="large")).agent.session_id
    asking = local_host.asking("x")
    await backend.entered("g")
    async with local_host.watching(Cursor(session_id=session_id)) as live:
        got: list[Event] = []
        async for frame in live:
            got += frame.batch.events
            if len(got) == 12:
                backend.release("g")
            if len(got) == 22:
                break
    assert (await asking).response.text == "ok"
    assert numbers(got) == list(range(1, 23))
    again = await local_host.watched(Cursor(session_id=session_id), upto=22)
    assert again == got


async def test_PF_B29_a_prompt_that_is_too_large_names_the_limit_and_stores_nothing(
    local_host: Harness,
) -> None:
    await local_host.start([gate("g"), result("ok")])
    await local_host.start([result("ok")], name="other")
    asking = local_host.asking("x")
    await local_host.backend.entered("g")
    for size in (2 << 20, 6 << 20):
        with refused("LIMIT_EXCEEDED") as caught:
            await local_host.tell("x" * size, request_id=f"q{size}")
        assert str(caught.value)
        with refused("RUN_NOT_FOUND"):
            await local_host.poll(f"q{size}")
    with refused("LIMIT_EXCEEDED") as named:
        await local_host.tell("x" * (2 << 20))
    assert named.value.metadata == {
        "limit": "max_prompt_bytes",
        "max": str(1 << 20),
        "size": str(2 << 20),
    }
    assert (await local_host.ask("y", "other")).response.text == "ok"
    local_host.backend.release("g")
    assert (await asking).response.text == "ok"
