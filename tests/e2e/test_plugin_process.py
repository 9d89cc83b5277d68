"""A plug-in in a process of its own: how it begins, serves and ends."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from support.docking import RecordingHost, a_prompt
from support.programs import gone
from turndock import events, wire
from turndock.errors import TurndockError
from turndock.plugin.v1 import ContractKind, DescribeRequest, ProbeRequest, ProbeResponse
from turndock.ports import BackendLost, TurnOutput
from turndock.remote import Remote, RemoteBackend, RemotePlugin, Unary

pytestmark = pytest.mark.slow

DEADLINE_S = 20.0

PLUGIN = """
import asyncio, logging, sys
from turndock import events, serving
from turndock.backend.v1 import StartSessionResponse, TerminateSessionResponse, UpdateSessionResponse
from turndock.ports import Backend

class Echo(Backend):
    async def start_session(self, request):
        return StartSessionResponse()
    async def terminate_session(self, request):
        return TerminateSessionResponse()
    async def update_session(self, request):
        return UpdateSessionResponse(session=request.session)
    async def prompt(self, request, turn):
        yield request.prompt
        if request.prompt == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                print("left", flush=True)
        yield events.result()

def ready(endpoint):
    print("ready", endpoint, flush=True)

asyncio.run(serving.serve(name="echo", version="1.2", backend=Echo(), on_ready=ready, grace=0.2))
"""

HOST = """
import os, subprocess, sys
environment = {**os.environ, "TURNDOCK_PLUGIN_PARENT": str(os.getpid())}
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], env=environment)
print("child", child.pid, flush=True)
if "die" in sys.argv:
    os.kill(os.getpid(), 9)
child.wait()
"""


class Process:
    """A plug-in's process and its output."""

    def __init__(self, process: asyncio.subprocess.Process, endpoint: str) -> None:
        self.process = process
        self.endpoint = endpoint

    async def line(self) -> str:
        assert self.process.stdout is not None
        raw = await asyncio.wait_for(self.process.stdout.readline(), DEADLINE_S)
        return raw.decode().strip()

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), DEADLINE_S)


@contextlib.asynccontextmanager
async def running(program: str, *arguments: str, endpoint: str | None) -> AsyncGenerator[Process]:
    environment = {**os.environ, "TURNDOCK_PLUGIN_ENDPOINT": endpoint or ""}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        *arguments,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Process(process, endpoint or "")
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@contextlib.asynccontextmanager
async def plugin(tmp_path: Path) -> AsyncGenerator[Process]:
    async with running(PLUGIN, endpoint=f"unix:{tmp_path}/plugin") as process:
        assert await process.line() == f"ready unix:{tmp_path}/plugin"
        yield process


class Health(Remote, service=descriptor_pool.Default().FindServiceByName("grpc.health.v1.Health")):
    check: Unary[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]


async def play(backend: RemoteBackend, prompt: str, said: list[TurnOutput]) -> None:
    async for output in backend.prompt(a_prompt(prompt), RecordingHost()):
        said += output if isinstance(output, list) else [output]


async def test_a_plug_in_says_what_it_is_and_serves(tmp_path: Path) -> None:
    async with plugin(tmp_path) as process, wire.connect(process.endpoint) as channel:
        description = await RemotePlugin(channel).describe(DescribeRequest())
        assert (description.name, description.version) == ("echo", "1.2")
        [contract] = description.contracts
        assert contract.kind == ContractKind.CONTRACT_KIND_BACKEND
        assert (contract.min_version, contract.max_version) == (1, 1)
        assert list(contract.capabilities) == [
            "approval",
            "interrupt",
            "multiplexed_events",
            "update_session",
        ]
        assert description.limits.max_message_bytes == 4 << 20
        assert (await RemotePlugin(channel).probe(ProbeRequest())).state == ProbeResponse.STATE_READY

        backend = RemoteBackend(channel, contract.capabilities)
        said: list[TurnOutput] = []
        await play(backend, "hello", said)
        await backend.close()
        assert said == [events.text("hello"), events.result()]


async def test_PF_E20_health_and_reflection_answer_and_the_unknown_is_unimplemented(tmp_path: Path) -> None:
    async with plugin(tmp_path) as process, wire.connect(process.endpoint) as channel:
        for service in ("", "turndock.backend.v1.Backend", "turndock.plugin.v1.Plugin"):
            answer = await Health(channel).check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert {
            "turndock.backend.v1.Backend",
            "turndock.plugin.v1.Plugin",
            "grpc.health.v1.Health",
        } <= await reflected_services(channel)
        method: Any = channel.unary_unary
        unknown = method("/turndock.backend.v1.Backend/Unknown")
        with pytest.raises(TurndockError, match="CAPABILITY_NOT_SUPPORTED"), wire.translated():
            await unknown(b"")


async def reflected_services(channel: grpc.aio.Channel) -> set[str]:
    method: Any = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    answers: list[reflection_pb2.ServerReflectionResponse] = [
        answer async for answer in method(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    ]
    return {service.name for answer in answers for service in answer.list_services_response.service}


@pytest.mark.parametrize("multiplexed", [False, True])
async def test_PF_B05_a_killed_plug_in_loses_its_turns(tmp_path: Path, multiplexed: bool) -> None:
    async with plugin(tmp_path) as process, wire.connect(process.endpoint) as channel:
        backend = RemoteBackend(channel, ["multiplexed_events"] if multiplexed else [])
        stream = backend.prompt(a_prompt("wait"), RecordingHost())
        assert await anext(stream) == [events.text("wait")]
        process.process.send_signal(signal.SIGKILL)
        with pytest.raises(BackendLost):
            await asyncio.wait_for(anext(stream), DEADLINE_S)
        await backend.close()


async def test_sigterm_ends_it_with_its_turns_cancelled_and_exit_code_0(tmp_path: Path) -> None:
    async with plugin(tmp_path) as process, wire.connect(process.endpoint) as channel:
        backend = RemoteBackend(channel, ["multiplexed_events"])
        stream = backend.prompt(a_prompt("wait"), RecordingHost())
        await anext(stream)
        process.process.send_signal(signal.SIGTERM)
        with pytest.raises(BackendLost):
            await asyncio.wait_for(anext(stream), DEADLINE_S)
        assert await process.line() == "left"
        assert await process.exit_code() == 0
        await backend.close()


async def test_it_ends_with_the_host_that_started_it(tmp_path: Path) -> None:
    async with running(HOST, PLUGIN, endpoint=f"unix:{tmp_path}/plugin") as host:
        _, child = (await host.line()).split()
        assert (await host.line()).startswith("ready")
        host.process.send_signal(signal.SIGKILL)
        await gone(int(child))


async def test_it_ends_when_its_host_is_gone_before_it_has_begun(tmp_path: Path) -> None:
    async with running(HOST, PLUGIN, "die", endpoint=f"unix:{tmp_path}/plugin") as host:
        _, child = (await host.line()).split()
        await gone(int(child))


async def test_without_an_endpoint_it_says_what_is_missing() -> None:
    async with running(PLUGIN, endpoint=None) as process:
        _, errors = await asyncio.wait_for(process.process.communicate(), DEADLINE_S)
    assert process.process.returncode == 1
    assert "TURNDOCK_PLUGIN_ENDPOINT: must say where to listen" in errors.decode()


async def test_beyond_this_machine_it_wants_encryption() -> None:
    async with running(PLUGIN, endpoint="0.0.0.0:0") as process:
        _, errors = await asyncio.wait_for(process.process.communicate(), DEADLINE_S)
    assert process.process.returncode == 1
    assert "can be reached from other machines" in errors.decode()


async def test_PF_E11_a_second_one_on_the_port_fails_and_leaves_the_first_alone() -> None:
    async with running(PLUGIN, endpoint="127.0.0.1:0") as first:
        endpoint = (await first.line()).removeprefix("ready ")
        async with running(PLUGIN, endpoint=endpoint) as second:
            _, errors = await asyncio.wait_for(second.process.communicate(), DEADLINE_S)
            assert second.process.returncode == 1
            assert f"cannot listen at {endpoint}" in errors.decode()
        async with wire.connect(endpoint) as channel:
            assert (await RemotePlugin(channel).describe(DescribeRequest())).name == "echo"
