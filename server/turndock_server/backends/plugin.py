"""A backend of this package as a plug-in process: `python -m turndock_server.backends.plugin echo`."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from turndock.ports import BACKEND_OPTIONS, Backend
from turndock.serving import ENDPOINT_VARIABLE, serve
from turndock_server import __version__
from turndock_server.backends import registry


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m turndock_server.backends.plugin", description=__doc__)
    parser.add_argument("backend", choices=sorted(registry.registry()))
    parser.add_argument("--endpoint", help=f"unix:/path or host:port; default: what {ENDPOINT_VARIABLE} says")
    scripted = parser.add_argument_group("scripted")
    scripted.add_argument("--control", type=Path, help="unix socket for a RemoteStage")
    scripted.add_argument(
        "--without", nargs="*", default=(), choices=BACKEND_OPTIONS, help="calls not to offer"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(_run(options.backend, options.endpoint, options.control, options.without))


async def _run(name: str, endpoint: str | None, control: Path | None, without: Sequence[str]) -> None:
    async with AsyncExitStack() as stack:
        backend = await _create(name, control, without, stack)
        await serve(name=name, version=__version__, backend=backend, endpoint=endpoint)


async def _create(name: str, control: Path | None, without: Sequence[str], stack: AsyncExitStack) -> Backend:
    if name == "scripted":
        from turndock_server.backends.scripted import ScriptedBackend
        from turndock_server.backends.stage import serve_stage

        scripted = ScriptedBackend(without=without)
        if control is not None:
            await stack.enter_async_context(serve_stage(scripted.stage, control))
        return scripted
    if name == "llama":
        from turndock_server.backends.llama import close_engines

        stack.push_async_callback(close_engines)
    return registry.create(name)


if __name__ == "__main__":
    main()
