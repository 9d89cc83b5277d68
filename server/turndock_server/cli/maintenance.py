"""`turndock maintenance`: keeping the server's store small and sound. Nothing of it ever runs by itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turndock_server.cli.connection import Connection, connected
from turndock_server.cli.exits import Exit
from turndock_server.cli.local import ConfigOption
from turndock_server.cli.options import JsonOption, RequestIdOption
from turndock_server.cli.output import enum_name, fail, say, say_facts, say_json, say_table, to_json

if TYPE_CHECKING:
    from turndock.store.v1 import HealthIssue, MaintenanceReport, RetentionPolicy
    from turndock.types.v1 import Scope

app = typer.Typer(no_args_is_help=True, help="Delete what has expired, prune logs, look for damage.")

EveryScopeOption = Annotated[
    bool, typer.Option("--every-scope", help="Every scope, each by itself, instead of the one of --scope.")
]


def _bound(value: str) -> int | str:
    if value == "unlimited":
        return value
    if not value.isascii() or not value.isdecimal() or int(value) < 1:
        raise typer.BadParameter('must be a whole number above 0, or "unlimited"')
    return int(value)


def _bound_option(help: str) -> Any:
    return typer.Option(
        parser=_bound, metavar="N|unlimited", show_default=False, help=help, rich_help_panel="Policy"
    )


def _list_option(help: str) -> Any:
    return typer.Option(
        show_default=False, help=f"{help} May be repeated; replaces the list.", rich_help_panel="Policy"
    )


@app.command("run")
@connected
async def run(
    host: Connection,
    *,
    config: ConfigOption = None,
    max_session_age_days: Annotated[
        Any, _bound_option("Days without a change after which any session that is not exempt is marked.")
    ] = None,
    max_completed_session_age_days: Annotated[
        Any, _bound_option("The same for sessions that have ended.")
    ] = None,
    hard_delete_after_days: Annotated[
        Any, _bound_option("Days after its marking at which a session is deleted for good.")
    ] = None,
    max_events_per_session: Annotated[Any, _bound_option("Events kept in each session.")] = None,
    max_total_events: Annotated[Any, _bound_option("Events kept in the whole scope.")] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            show_default=False,
            help="Store events there before they are pruned: `artifacts`, or a plug-in's name.",
            rich_help_panel="Policy",
        ),
    ] = None,
    exempt_status: Annotated[list[str] | None, _list_option("Never mark sessions that stand so.")] = None,
    exempt_tag: Annotated[list[str] | None, _list_option("Never mark sessions with this tag.")] = None,
    prune_first: Annotated[list[str] | None, _list_option("Prune events of this type before others.")] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(show_default=False, help="Most rows in one transaction.", rich_help_panel="Policy"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    delete_artifacts: Annotated[
        bool,
        typer.Option("--delete-artifacts", help="Delete the bytes of artifacts, too, not only their rows."),
    ] = False,
    every_scope: EveryScopeOption = False,
    request_id: RequestIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Mark what has expired, delete what was marked long ago, prune logs, remove what belongs to nothing.

    The policy is the table `maintenance` of the configuration file, each key of which an option can replace. Exits
    with 1 when a step failed; the others are taken all the same.
    """
    from turndock.store.v1 import ExecuteRequest

    policy = _policy(
        config,
        {
            "max_session_age_days": max_session_age_days,
            "max_completed_session_age_days": max_completed_session_age_days,
            "hard_delete_after_days": hard_delete_after_days,
            "max_events_per_session": max_events_per_session,
            "max_total_events": max_total_events,
            "archive": archive,
            "exempt_statuses": exempt_status,
            "exempt_tags": exempt_tag,
            "prune_event_types_first": prune_first,
            "batch_size": batch_size,
        },
    )
    request = ExecuteRequest(
        scope=host.scope,
        request_id=request_id or "",
        policy=policy,
        dry_run=dry_run,
        every_scope=every_scope,
        delete_artifacts=delete_artifacts,
    )
    report = (await host.maintenance.execute(request)).report
    if as_json:
        say_json(to_json(report, always=True))
    else:
        say_facts(_figures(report))
    if report.errors:
        if not as_json:
            say_table(("STEP", "SESSION", "SCOPE", "WHAT WENT WRONG"), map(_error_row, report.errors))
        raise fail(
            f"{len(report.errors)} of the steps failed",
            "Mend what they say, and run it again: it goes on from where it is.",
        )


@app.command("check")
@connected
async def check(
    host: Connection, *, every_scope: EveryScopeOption = False, as_json: JsonOption = False
) -> None:
    """Look for rows that do not fit together, and say what to do. Changes nothing. Exits with 1 if there are any."""
    from turndock.store.v1 import HealthCheckRequest
    from turndock.types.v1 import Page

    issues: list[HealthIssue] = []
    cursor = ""
    while True:
        request = HealthCheckRequest(
            scope=host.scope, every_scope=every_scope, page=Page(limit=1_000, cursor=cursor)
        )
        page = await host.maintenance.health_check(request)
        issues += page.issues
        if not (cursor := page.next_cursor):
            break
    if as_json:
        say_json([to_json(issue) for issue in issues])
    elif not issues:
        say("the data is sound")
    else:
        say_table(("SCOPE", "FINDING", "WHAT TO DO"), map(_issue_row, issues))
    if issues:
        raise typer.Exit(Exit.FAILED)


def _policy(config: Path | None, options: dict[str, Any]) -> "RetentionPolicy":
    """The policy of the configuration file, with what the options say in place of it."""
    from turndock_server.config import ConfigError, load

    given = {key: value for key, value in options.items() if value is not None}
    try:
        return load(config, {"maintenance": given} if given else None).maintenance.policy()
    except ConfigError as error:
        raise fail(str(error), "Nothing was done.", code=Exit.USAGE) from None


def _figures(report: "MaintenanceReport") -> dict[str, object]:
    would = "would be " if report.dry_run else ""
    archives = f" in {report.archives_written} artifacts" if report.archives_written else ""
    return {
        f"sessions {would}marked as deleted": report.sessions_soft_deleted,
        f"sessions {would}deleted": report.sessions_hard_deleted,
        f"events {would}pruned": report.events_pruned,
        f"events {would}archived": f"{report.events_archived}{archives}",
        f"artifact rows {would}removed": report.artifacts_cleaned,
        f"counters {would}removed": report.orphaned_sequences_cleaned,
        "took": f"{report.duration_us / 1_000_000:.2f} s",
    }


def _error_row(error: Any) -> tuple[object, ...]:
    from turndock.store.v1 import MaintenanceStep

    step = enum_name(MaintenanceStep, error.step, "MAINTENANCE_STEP_").replace("_", " ")
    return step, error.session_id, _scope(error.scope), f"{error.message} ({error.reason})"


def _issue_row(issue: "HealthIssue") -> tuple[object, ...]:
    from turndock.store.v1 import HealthIssue

    kind = enum_name(HealthIssue.Kind, issue.kind, "KIND_")
    return _scope(issue.scope), issue.message, _REMEDIES.get(kind, "Look at the server's log.")


def _scope(scope: "Scope") -> str:
    return scope.tenant or "-"


_REMEDIES = {
    "orphaned_events": "A writer appended to a session it never saved. Save that session, or prune: "
    "`turndock maintenance run --max-total-events N`.",
    "orphaned_runs": "A writer saved a run of a session it never saved. Save the session, or delete it: "
    "`turndock sessions delete SESSION`.",
    "sequence_mismatch": "The store's file was changed by hand, or restored in part. Nothing can be appended to the "
    "session: restore a whole backup, or delete it: `turndock sessions delete SESSION`.",
    "orphaned_artifacts": "`turndock maintenance run` removes their rows; with --delete-artifacts their bytes, too.",
}
"""What to do about each kind of issue."""
