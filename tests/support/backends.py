"""The backends that come with Turndock, and what makes each of them do what conformance cases are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import parts
from support.docking import Mode
from support.programs import python
from turndock import jsontext
from turndock.conformance.backend import Prompt, Prompts
from turndock.ports import BACKEND_OPTIONS, Backend
from turndock_server.backends.command import CommandBackend, CommandConfig
from turndock_server.backends.echo import EchoBackend
from turndock_server.backends.llama import LlamaBackend
from turndock_server.backends.scripted import ScriptedBackend


@dataclass(frozen=True)
class Subject:
    """A backend to be put through the cases."""

    create: Callable[[Path], Backend]
    """Makes one; it may put files into the folder."""
    prompts: Prompts
    abilities: frozenset[str]
    lacks: dict[str, str] = field(default_factory=dict[str, str])
    """Prompts it has none of, and why."""
    config_json: str = "{}"
    deadline_s: float = 10.0

    def abilities_in(self, mode: Mode) -> frozenset[str]:
        """Optional calls it offers there: behind gRPC, any backend can be interrupted."""
        return self.abilities if mode == "in_process" else self.abilities | {"interrupt"}


def _echo(text: str, **config: Any) -> Prompt:
    return Prompt(text, jsontext.canonical(config))


NO_TOOLS = "it uses no tools"
NO_APPROVALS = {"asking": "it has nothing to ask people", "parking": "it has nothing to ask people"}
NO_CHECKPOINTS = "it has nothing worth a checkpoint"

ECHO = Subject(
    lambda _: EchoBackend(),
    Prompts(
        answering=_echo("hello there"),
        long_running=_echo("on and " * 5_000, delay_ms=20),
        repeating=lambda word: _echo(f"the word is {word} and {word} again", delay_ms=1),
    ),
    frozenset(("update_session", "resume_session")),
    lacks={
        "failing": "an echo never fails",
        "checkpointing": NO_CHECKPOINTS,
        "tool_using": NO_TOOLS,
        **NO_APPROVALS,
    },
)

_ANSWER = [parts.text("hel"), parts.text("lo"), parts.usage(10, 2), parts.result("hello")]


def _script(*script: parts.Part) -> Prompt:
    config = {"scripts": [script], "default": _ANSWER}
    return Prompt("play", jsontext.canonical(config))


SCRIPTED = Subject(
    lambda _: ScriptedBackend(),
    Prompts(
        answering=_script(*_ANSWER),
        long_running=_script(parts.text("on and on"), parts.gate("never")),
        failing=_script(parts.text("x"), parts.error("rate_limited")),
        checkpointing=_script(parts.ckpt("s-1"), parts.text("kept"), parts.result(sid="s-1")),
        tool_using=_script(
            parts.tool_use("t1", "read", path="/x"),
            parts.tool_use("t2", "write"),
            parts.tool_result("t2", {"n": 1}),
            parts.tool_result("t1"),
            parts.result("done"),
        ),
        repeating=lambda word: _script(parts.text("it is "), parts.text(word), parts.result()),
        asking=_script(parts.text("may I?"), parts.approval("a1", arguments={"path": "/x"}), parts.result()),
        parking=_script(parts.text("may I?"), parts.paused(parts.asked("a1"), parts.asked("a2"))),
    ),
    frozenset(BACKEND_OPTIONS),
)
_REJECTED = Prompts(answering=_script(*_ANSWER), failing=_script(parts.reject("down")))
SCRIPTED_BARE = Subject(
    lambda _: ScriptedBackend(without=BACKEND_OPTIONS),
    _REJECTED,
    frozenset(),
    lacks=dict.fromkeys(
        ("long_running", "checkpointing", "tool_using", "repeating", "asking", "parking"),
        "the other scripted backend does that",
    ),
)

_PROGRAM = """
import json, sys, time
def say(type, **fields):
    print(json.dumps({"type": type, **fields}), flush=True)
def hear():
    return json.loads(sys.stdin.readline())
heard = hear()
verb, _, rest = heard["prompt"].partition(" ")
session = heard["session"]
turns = (session["state"] or {"turns": 0})["turns"] + 1
name = session["provider_session_id"] or "program-" + heard["session_id"]
say("accepted", session={"state": {"turns": turns}, "provider_session_id": session["provider_session_id"]})
if verb == "wait":
    say("text", text="waiting")
    time.sleep(600)
elif verb == "fail":
    say("error", reason="told_to", message="as told")
elif verb == "checkpoint":
    say("checkpoint", provider_session_id=name)
    hear()
    say("result", text="kept", provider_session_id=name)
elif verb == "ask":
    say("approval", approval_id="a1", tool_name="read", arguments={"path": "/x"})
    say("result", text=hear()["decision"])
elif verb == "park" and "decisions" not in heard:
    say("paused", approvals=[{"approval_id": "a1", "tool_name": "read"}])
elif verb == "park":
    say("result", text=heard["decisions"][0]["decision"])
elif verb == "tool":
    say("tool_use", id="t1", name="read", arguments={"path": "/x"})
    say("tool_result", id="t1", name="read", result=[1, 2])
    say("result", text="done")
else:
    say("text", text="you said ")
    say("text", text=rest)
    say("usage", input_tokens=3, output_tokens=2, model="program")
    say("result", provider_session_id=name)
"""


def _command(folder: Path) -> Backend:
    return CommandBackend(CommandConfig(argv=python(folder, _PROGRAM)), grace_s=0.5)


COMMAND = Subject(
    _command,
    Prompts(
        answering=Prompt("say hello there"),
        long_running=Prompt("wait"),
        failing=Prompt("fail"),
        checkpointing=Prompt("checkpoint"),
        tool_using=Prompt("tool"),
        repeating=lambda word: Prompt(f"say {word}"),
        asking=Prompt("ask"),
        parking=Prompt("park"),
    ),
    frozenset(BACKEND_OPTIONS),
)

_LLAMA: dict[str, Any] = {"context_tokens": 1024, "temperature": 0}
LLAMA = Subject(
    lambda _: LlamaBackend(),
    Prompts(
        answering=Prompt("Say hi.", jsontext.canonical(_LLAMA | {"max_tokens": 6})),
        long_running=Prompt("Count to one thousand.", jsontext.canonical(_LLAMA | {"max_tokens": 300})),
        failing=Prompt("too long " * 2_000, jsontext.canonical(_LLAMA | {"max_tokens": 6})),
    ),
    frozenset(("update_session", "resume_session")),
    lacks={
        "checkpointing": NO_CHECKPOINTS,
        "tool_using": NO_TOOLS,
        "repeating": "so small a model says what it likes",
        **NO_APPROVALS,
    },
    deadline_s=60.0,
)

SUBJECTS = {"echo": ECHO, "scripted": SCRIPTED, "scripted_bare": SCRIPTED_BARE, "command": COMMAND}
