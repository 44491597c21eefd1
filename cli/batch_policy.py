"""`iosched batch --requests`: measure how to serve several models, and write it for `serve_together`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iosched.cli.bench_requests import LOAD_COLUMNS, load_row_object
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.named_models import parse_named
from iosched.cli.common.options import flags_given
from iosched.cli.common.output import (
    INPUTS_SEED,
    Destination,
    check_destinations,
    emit_result,
    note,
    note_before,
    write_and_note,
)
from iosched.cli.common.progress import progress_bar
from iosched.cli.common.quantities import ByName, for_models
from iosched.cli.common.source import input_file
from iosched.cli.common.tables import print_items
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.jobs.load_test.policy_search import PolicySearchResult

_OTHERS = (
    *("schedule", "policy", "memory", "share_input", "device", "batch_size", "input_shapes", "precision", "budget"),
    *("gap", "resume", "profile_db", "skip_broken", "replacements", "dry_run"),
)
"""Options of `batch` without requests."""


def batch_policy(
    models: Sequence[str],
    output: Destination | None,
    rates: ByName,
    p99_s: ByName,
    threads: int | None,
    as_json: bool,
) -> None:
    """Run `batch` with requests, write the policy, and print how it was compared."""
    from iosched.jobs.load_test.policy_search import search_policy
    from iosched.jobs.loading.plan import path_in

    if others := flags_given(*_OTHERS):
        raise UsageError(f"--requests composes nothing: leave {others[0]} out")
    named = parse_named(models)
    names = [each.name for each in named]
    rates = for_models(rates, names, "--requests")
    paths = {each.name: path_in(_file(each.source)) for each in named}
    output = output or Destination("-o", Path("policy.json"))
    check_destinations([output], inputs=paths.values(), as_json=as_json)
    note_before(["cpu"], threads)
    with progress_bar() as observer:
        result = search_policy(
            paths,
            rates,
            p99_s=for_models(p99_s, names, "--p99") if p99_s else {},
            threads=threads,
            folder=Path() if output.path is None else output.path.parent,
            observer=observer,
        )
    write_and_note(output, result.file.to_json())
    for line in result.notes:
        note(line)
    if as_json:
        emit_result(as_object(result, output), INPUTS_SEED)
    else:
        title = f"{', '.join(names)} on {result.file.machine.name}"
        print_items(result.rows, LOAD_COLUMNS, title=title, to_stderr=output.path is None)


def _file(source: str) -> Path:
    path = input_file(source)
    if path is None:
        raise UsageError(f"{source} is no file, which a policy needs: save it to one")
    return path


def as_object(result: PolicySearchResult, output: Destination) -> dict[str, object]:
    """JSON object of `batch --requests --json`."""
    rows = [load_row_object(row) for row in result.rows]
    return json_object(result, "output rows chosen notes", output=str(output), rows=rows)
