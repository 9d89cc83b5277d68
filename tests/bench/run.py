"""Runs the benchmarks: `python -m bench.run [word ...] [--json file]`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import footprint, logs, throughput
from bench.harness import Benchmark, Row

BENCHMARKS: dict[str, Benchmark] = {
    "two-hops": throughput.two_hops,
    "steady": throughput.steady,
    "first-event": throughput.first,
    "empty-turn": throughput.empty_turn,
    "twenty-turns": throughput.twenty_turns,
    "fan-out": logs.fan_out,
    "catch-up": logs.catch_up,
    "append": logs.append,
    "tail-read": logs.tail_read,
    "memory": footprint.memory,
    "cold-start": footprint.cold_start,
}


def main() -> None:
    """Run what was asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help=f"parts of names; default all of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", type=Path, help="also write the rows here, one JSON object per line")
    options = parser.parse_args()
    chosen = [name for name in BENCHMARKS if not options.words or any(word in name for word in options.words)]
    rows: list[Row] = []
    for name in chosen:
        for row in asyncio.run(BENCHMARKS[name]()):
            print(row.as_json(), flush=True)
            rows.append(row)
    if options.json:
        options.json.write_text("".join(f"{row.as_json()}\n" for row in rows), encoding="utf-8")
    Console().print(table(rows))


def table(rows: list[Row]) -> Table:
    """The rows for people."""
    shown = Table("what", "figures", "target", "met")
    for row in rows:
        figures = "\n".join(f"{name} {value:,.2f}" for name, value in row.figures.items())
        shown.add_row(row.name, figures, row.target, {True: "yes", False: "NO", None: ""}[row.met])
    return shown


if __name__ == "__main__":
    main()
