"""Messages as people read them: rows of tables, facts below each other, an event on a line."""

from collections.abc import Callable, Iterator
from datetime import datetime

from google.protobuf.message import Message

from turndock import events
from turndock.agent.v1 import AgentStatus, GetServerInfoResponse
from turndock.plugin.v1 import ContractKind, ProbeResponse
from turndock.store.v1 import GetCostSummaryResponse, GetSessionStatsResponse, GetUsageSummaryResponse
from turndock.types.v1 import (
    AgentPhase,
    ApprovalDecision,
    Artifact,
    Event,
    Failure,
    Run,
    RunStatus,
    Session,
    SessionStatus,
    ToolApprovalRequested,
    Usage,
)
from turndock_server.cli.output import enum_name, moment, one_line, size

AGENT_COLUMNS = ("NAME", "PHASE", "QUEUED", "BACKEND", "TURNS", "LAST ACTIVITY", "SESSION")
RUN_COLUMNS = ("RUN", "STATUS", "ACCEPTED", "PROMPT", "OUTCOME")
SESSION_COLUMNS = ("SESSION", "AGENT", "STATUS", "EVENTS", "UPDATED", "TAGS")
ARTIFACT_COLUMNS = ("KEY", "SIZE", "TYPE", "STORED", "SESSION")

APPROVAL_COLUMNS = ("APPROVAL", "AGENT", "TOOL", "ARGUMENTS", "MAY", "EXPIRES", "MESSAGE")

_CUT = 160


def phase(agent: AgentStatus) -> str:
    """Where an agent stands, and whether its mailbox is frozen."""
    name = enum_name(AgentPhase, agent.phase, "AGENT_PHASE_")
    return f"{name}, halted" if agent.halted else name


def run_status(run: Run) -> str:
    """Where a run stands."""
    return enum_name(RunStatus, run.status, "RUN_STATUS_")


def agent_row(agent: AgentStatus) -> tuple[object, ...]:
    """A row of `AGENT_COLUMNS`."""
    return (
        agent.agent_name,
        phase(agent),
        agent.queued,
        agent.definition.backend,
        agent.turn_count,
        moment(agent.last_activity_us),
        agent.session_id,
    )


def agent_facts(agent: AgentStatus) -> dict[str, object]:
    """What there is to say about an agent."""
    definition = agent.definition
    return {
        "name": agent.agent_name,
        "phase": phase(agent),
        "title": agent.title,
        "session": agent.session_id,
        "backend": with_config(definition.backend, definition.backend_config_json),
        "behavior": with_config(definition.behavior, definition.behavior_config_json),
        "running": agent.current_run_id,
        "queued": agent.queued,
        "notifications": agent.pending_notifications or None,
        "approvals": ", ".join(approval.approval_id for approval in agent.pending_approvals),
        "turns": agent.turn_count,
        "tokens": usage(agent.total_usage),
        "state": one_line(agent.state_json, _CUT),
        "last event": agent.last_sequence,
        "last activity": moment(agent.last_activity_us),
        "failed saves": agent.persistence_failures or None,
    }


def with_config(name: str, config_json: str) -> str:
    """A name, and the configuration behind it if there is any."""
    return name if config_json in ("", "{}") else f"{name} {config_json}"


def usage(counts: Usage) -> str:
    """Token counts, as far as they were reported."""
    parts = [
        (counts.input_tokens, "in", counts.HasField("input_tokens")),
        (counts.output_tokens, "out", counts.HasField("output_tokens")),
    ]
    return ", ".join(f"{count} {word}" for count, word, is_known in parts if is_known)


def failure(why: Failure) -> str:
    """Why a turn did not succeed, in a line."""
    return f"{why.reason}: {why.message}" if why.message else why.reason


def run_row(run: Run) -> tuple[object, ...]:
    """A row of `RUN_COLUMNS`."""
    return (
        run.id,
        run_status(run),
        moment(run.created_at_us),
        one_line(run.prompt, 40),
        one_line(outcome(run), 60),
    )


def outcome(run: Run) -> str:
    """What a run answered, or why it did not; empty while it has neither."""
    if run.HasField("failure"):
        return failure(run.failure)
    return run.response.text if run.HasField("response") else ""


def run_facts(run: Run) -> dict[str, object]:
    """What there is to say about a run."""
    return {
        "run": run.id,
        "status": run_status(run),
        "session": run.session_id,
        "parent": run.parent_run_id,
        "attempt": run.attempt if run.attempt > 1 else None,
        "accepted": moment(run.created_at_us),
        "started": moment(run.started_at_us),
        "ended": moment(run.ended_at_us),
        "provider": run.provider,
        "tokens": usage(run.usage),
        "prompt": run.prompt,
        "answer": run.response.text if run.HasField("response") else None,
        "failure": failure(run.failure) if run.HasField("failure") else None,
    }


def approval_row(agent_name: str, request: ToolApprovalRequested) -> tuple[object, ...]:
    """A row of `APPROVAL_COLUMNS`."""
    return (
        request.approval_id,
        agent_name,
        request.tool_name,
        one_line(request.arguments_json, 80),
        ", ".join(decision(each) for each in request.allowed_decisions) or "approve, edit, reject",
        moment(request.expires_at_us),
        one_line(request.message, 60),
    )


def decision(what: ApprovalDecision.ValueType) -> str:
    """What was, or may be, decided."""
    return enum_name(ApprovalDecision, what, "APPROVAL_DECISION_")


def how_to_decide(agent_name: str, request: ToolApprovalRequested) -> str:
    """What somebody may do about a request."""
    verbs = [decision(each) for each in request.allowed_decisions] or ["approve", "edit", "reject"]
    return f"waits: turndock approvals {'|'.join(verbs)} {agent_name} {request.approval_id}"


def session_row(session: Session) -> tuple[object, ...]:
    """A row of `SESSION_COLUMNS`."""
    return (
        session.id,
        session.agent_id,
        session_status(session),
        session.last_sequence,
        moment(session.updated_at_us),
        ", ".join(session.tags),
    )


def session_status(session: Session) -> str:
    """Where a session stands."""
    return enum_name(SessionStatus, session.status, "SESSION_STATUS_")


def session_facts(session: Session) -> dict[str, object]:
    """What there is to say about a session."""
    return {
        "session": session.id,
        "agent": session.agent_id,
        "status": session_status(session),
        "title": session.agent.title,
        "parent": session.parent_session_id,
        "tags": ", ".join(session.tags),
        "metadata": one_line(session.metadata_json, _CUT),
        "context": one_line(session.context_json, _CUT),
        "events": session.last_sequence,
        "incarnation": session.incarnation,
        "created": moment(session.created_at_us),
        "updated": moment(session.updated_at_us),
        "deleted": moment(session.deleted_at_us),
    }


def stats_facts(stats: GetSessionStatsResponse) -> dict[str, object]:
    """What there is to say about a session in figures."""
    counts = (
        f"{enum_name(RunStatus, each.status, 'RUN_STATUS_')} {each.run_count}" for each in stats.status_counts
    )
    return {
        "events": stats.event_count,
        "runs": stats.run_count,
        "by status": ", ".join(counts),
        "tokens": usage(stats.token_totals),
        "total tokens": _known(stats.token_totals, "total_tokens"),
        "providers": ", ".join(stats.providers_used),
        "first event": moment(stats.first_event_at_us),
        "last event": moment(stats.last_event_at_us),
    }


USAGE_COLUMNS = ("PROVIDER", "RUNS", "INPUT", "OUTPUT", "TOTAL", "CACHED INPUT", "REASONING")
COST_COLUMNS = ("PROVIDER", "MODEL", "RUNS", "US DOLLARS")
_ALL = "all"


def usage_rows(summary: GetUsageSummaryResponse) -> Iterator[tuple[object, ...]]:
    """Rows of `USAGE_COLUMNS`, all of them together last."""
    for each in summary.by_provider:
        yield (each.provider, each.run_count, *_counts(each.totals))
    yield (_ALL, summary.run_count, *_counts(summary.totals))


def cost_rows(summary: GetCostSummaryResponse) -> Iterator[tuple[object, ...]]:
    """Rows of `COST_COLUMNS`, all of them together last."""
    for each in summary.by_model:
        yield each.provider, each.model, each.run_count, f"{each.cost_usd:.6f}"
    yield _ALL, "", summary.run_count, f"{summary.total_cost_usd:.6f}"


def _counts(counts: Usage) -> tuple[object, ...]:
    names = ("input_tokens", "output_tokens", "total_tokens", "cached_input_tokens", "reasoning_tokens")
    return tuple(_known(counts, name) for name in names)


def _known(counts: Usage, name: str) -> object:
    """A count; empty for one nobody reported."""
    known = {field.name: count for field, count in counts.ListFields()}
    return known.get(name, "")


def artifact_row(artifact: Artifact) -> tuple[object, ...]:
    """A row of `ARTIFACT_COLUMNS`."""
    return (
        artifact.key,
        size(artifact.size),
        artifact.media_type,
        moment(artifact.stored_at_us),
        artifact.session_id,
    )


def artifact_facts(artifact: Artifact) -> dict[str, object]:
    """What there is to say about an artifact."""
    return {
        "key": artifact.key,
        "size": size(artifact.size),
        "sha-256": artifact.sha256.hex(),
        "type": artifact.media_type,
        "session": artifact.session_id,
        "metadata": one_line(artifact.metadata_json, _CUT),
        "stored": moment(artifact.stored_at_us),
    }


def server_facts(info: GetServerInfoResponse) -> dict[str, object]:
    """What there is to say about a server, but for its plug-ins."""
    limits = info.limits
    return {
        "version": info.version,
        "host": info.host_id,
        "started": moment(info.started_at_us),
        "backends": ", ".join(info.backends),
        "behaviors": ", ".join(info.behaviors),
        "sessions in": info.session_store,
        "artifacts in": info.artifact_store,
        "snapshots in": info.agent_persistence,
        "services": ", ".join(name.rpartition(".")[2] for name in info.services),
        "credentials": ", ".join(info.credentials) or "(nobody is asked for any)",
        "live agents": info.live_agents,
        "in scope": info.scope.tenant,
        "largest prompt": size(limits.max_prompt_bytes),
        "largest message": size(limits.max_message_bytes),
        "largest artifact": size(limits.max_artifact_bytes),
    }


PLUGIN_COLUMNS = ("PLUG-IN", "STATE", "WHAT", "OFFERS", "STARTS", "MESSAGE")


def plugin_rows(info: GetServerInfoResponse) -> Iterator[tuple[object, ...]]:
    """Rows of `PLUGIN_COLUMNS`."""
    for plugin in info.plugins:
        offers = (
            enum_name(ContractKind, contract.kind, "CONTRACT_KIND_")
            for contract in plugin.description.contracts
        )
        yield (
            plugin.name,
            enum_name(ProbeResponse.State, plugin.state, "STATE_"),
            f"{plugin.description.name} {plugin.description.version}".strip(),
            ", ".join(offers),
            plugin.starts or "",
            one_line(plugin.message),
        )


def event_line(event: Event) -> str:
    """An event on a line: its number, its time, its type, and the gist of it."""
    time = datetime.fromtimestamp(event.time_us / 1_000_000).astimezone()
    name = events.type_name(event.type)
    run = f"{event.run_id}  " if name.startswith("run_") else ""
    return f"{event.sequence:>6}  {time:%H:%M:%S}  {name:<22}  {run}{gist(event)}".rstrip()


def gist(event: Event) -> str:
    """What an event says, on one line."""
    if event.HasField("offloaded"):
        return f"{size(event.offloaded.size)} in artifact {event.offloaded.key}"
    member = event.WhichOneof("payload")
    if member is None:
        return ""
    payload: Message = getattr(event, member)
    facts = (_fact(field.name, value) for field, value in payload.ListFields())
    return one_line("  ".join(fact for fact in facts if fact), _CUT)


def _fact(name: str, value: object) -> str:
    if isinstance(value, Failure):
        return failure(value)
    if isinstance(value, Usage):
        return usage(value)
    if name in _NUMBERS and isinstance(value, int):
        return _NUMBERS[name](value)
    if name in _MUTE or not isinstance(value, (str, int)):
        return ""
    if name == "text":
        return repr(value)
    return str(value) if name in _PLAIN else f"{name.removesuffix('_json')}={value}"


_MUTE = frozenset(("original_prompt", "role", "attempt", "rewritten", "incomplete_text"))
"""Fields that say the same as others, or nothing a reader misses."""
_PLAIN = frozenset(("prompt", "reason", "stop_reason", "name", "message", "policy"))
"""Fields that need no name before them."""
_NUMBERS: dict[str, Callable[[int], str]] = {
    "duration_us": lambda us: f"{us / 1_000_000:.3f} s",
    "expires_at_us": lambda us: f"expires={moment(us)}",
    "decision": lambda number: enum_name(ApprovalDecision, number, "APPROVAL_DECISION_"),
}
"""Numbers that say nothing to a reader as they are."""
