"""Budgets and usage: what an agent may still spend."""

from __future__ import annotations

import pytest

from turndock.types.v1 import AgentDefinition, AgentLimits, AgentRecord, Run, RunOrigin, Session, Usage
from turndock_server.core.accounts import DEFAULT_LIMITS, add_usage, exhausted, with_defaults


def session(limits: AgentLimits, **record: object) -> Session:
    return Session(agent=AgentRecord(definition=AgentDefinition(limits=limits), **record))  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(
    ("limits", "spent", "left"),
    [
        (AgentLimits(max_turns=2), {"turn_count": 2}, {"turn_count": 1}),
        (
            AgentLimits(max_tokens=10),
            {"total_usage": Usage(input_tokens=6, output_tokens=4)},
            {"total_usage": Usage(input_tokens=6, output_tokens=3)},
        ),
        (AgentLimits(max_turn_time_ms=3), {"turn_time_us": 3_000}, {"turn_time_us": 2_999}),
    ],
)
def test_a_spent_budget_ends_turns_before_they_begin(
    limits: AgentLimits, spent: dict[str, object], left: dict[str, object]
) -> None:
    failure = exhausted(session(limits, **spent), Run())
    assert failure is not None
    assert failure.reason == "budget_exceeded"
    assert exhausted(session(limits, **left), Run()) is None


def test_a_chain_ends_at_its_limit_and_other_runs_do_not() -> None:
    limits = AgentLimits(max_self_chain=2)
    chained = Run(origin=RunOrigin.RUN_ORIGIN_CHAIN)
    assert exhausted(session(limits, chain_length=2), chained) is None
    failure = exhausted(session(limits, chain_length=3), chained)
    assert failure is not None
    assert failure.reason == "self_chain_limit"
    assert exhausted(session(limits, chain_length=3), Run(origin=RunOrigin.RUN_ORIGIN_TELL)) is None


def test_without_limits_nothing_ends() -> None:
    assert exhausted(session(AgentLimits(), turn_count=10**9, turn_time_us=10**12), Run()) is None


def test_usage_adds_what_is_told_and_leaves_the_rest_unset() -> None:
    total = Usage(input_tokens=1)
    add_usage(total, Usage(input_tokens=10, output_tokens=2, model="m"))
    add_usage(total, None)
    assert total == Usage(input_tokens=11, output_tokens=2)


def test_given_limits_win_over_defaults() -> None:
    limits = with_defaults(AgentLimits(watchdog_ms=0, max_turns=3), DEFAULT_LIMITS)
    assert (limits.watchdog_ms, limits.max_turns, limits.idle_shutdown_ms) == (0, 3, 300_000)
