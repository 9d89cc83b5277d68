"""The parts of a `ScriptedBackend`'s scripts, under the names the acceptance cases use."""

from __future__ import annotations

import base64
from typing import Any

Part = dict[str, Any]
Script = list[Part]

EOF: Part = {"eof": None}


def text(piece: str) -> Part:
    return {"text": piece}


def usage(input_tokens: int | None, output_tokens: int | None) -> Part:
    return {"usage": [input_tokens, output_tokens]}


def tool_use(call_id: str, name: str = "tool", **arguments: Any) -> Part:
    return {"tool_use": {"id": call_id, "name": name, "arguments": arguments}}


def tool_result(call_id: str, result: Any = None) -> Part:
    return {"tool_result": {"id": call_id, "result": result}}


def result(answer: str | None = None, *, sid: str = "", **details: Any) -> Part:
    return {"result": {"text": answer, "provider_session_id": sid, **details}}


def error(reason: str | None = None) -> Part:
    return {"error": reason}


def reject(reason: str) -> Part:
    return {"reject": reason}


def crash(message: str = "boom") -> Part:
    return {"crash": message}


def gate(name: str) -> Part:
    return {"gate": name}


def ckpt(provider_session_id: str) -> Part:
    """Asks for a checkpoint; the turn breaks if it is refused."""
    return {"ckpt": provider_session_id}


def ckpt_or_on(provider_session_id: str) -> Part:
    """Asks for a checkpoint and goes on whatever the answer."""
    return {"ckpt?": provider_session_id}


def approval(approval_id: str, tool_name: str = "rm", **fields: Any) -> Part:
    """Waits for a decision with the turn open, then says how the tool's call ended."""
    return {"approval": asked(approval_id, tool_name, **fields)}


def paused(*approvals: dict[str, Any]) -> Part:
    """Ends for now; the next script is what follows the decisions."""
    return {"paused": list(approvals)}


def asked(approval_id: str, tool_name: str = "rm", **fields: Any) -> dict[str, Any]:
    return {"approval_id": approval_id, "tool_name": tool_name, **fields}


def emit(count: int, *, size: int = 8, batch: int = 1) -> Part:
    return {"emit": {"count": count, "size": size, "batch": batch}}


def event(**fields: Any) -> Part:
    """An event in protobuf's JSON."""
    return {"event": fields}


def event_bytes(encoded: bytes) -> Part:
    return {"event_bytes": base64.b64encode(encoded).decode()}
