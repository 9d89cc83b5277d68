"""Answers to approval requests."""

from __future__ import annotations

from typing import Any

from turndock import jsontext
from turndock.agent.v1 import ApprovalAnswer
from turndock.types.v1 import ApprovalDecision, ToolApprovalRequested

Asked = str | ToolApprovalRequested
"""An approval request or its id. With the request, an answer holds only if the arguments are still those."""


def approve(asked: Asked) -> ApprovalAnswer:
    """Let the call run as it is."""
    return ApprovalAnswer(
        approval_id=_id(asked),
        decision=ApprovalDecision.APPROVAL_DECISION_APPROVE,
        arguments_sha256=_digest(asked),
    )


def edit(asked: Asked, arguments: Any) -> ApprovalAnswer:
    """Let the call run with other arguments: any JSON value."""
    return ApprovalAnswer(
        approval_id=_id(asked),
        decision=ApprovalDecision.APPROVAL_DECISION_EDIT,
        arguments_json=jsontext.canonical(arguments),
        arguments_sha256=_digest(asked),
    )


def reject(asked: Asked, feedback: str = "") -> ApprovalAnswer:
    """Keep the call from running; the model is told why."""
    return ApprovalAnswer(
        approval_id=_id(asked),
        decision=ApprovalDecision.APPROVAL_DECISION_REJECT,
        feedback=feedback,
        arguments_sha256=_digest(asked),
    )


def _id(asked: Asked) -> str:
    return asked if isinstance(asked, str) else asked.approval_id


def _digest(asked: Asked) -> bytes:
    return b"" if isinstance(asked, str) else asked.arguments_sha256
