"""`iosched batch --replace`: other weights for models of a file, without a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from iosched.cli.batch_report import Written
from iosched.cli.members import parse_named
from iosched.cli.output import check_destinations, emit_json, note, refuse_terminal, write
from iosched.cli.source import input_file, read_alike, read_schedule_and_model
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.jobs.batching.replace import Replacement


def replace(texts: Sequence[str], file: str, files: Written, *, as_json: bool) -> None:
    """Writes the file with the weights of the models that `--replace` names.

    Args:
        texts: `a=FILE` each.
        file: the file of several models.
        files: where the new one is written.
        as_json: whether a JSON object is printed.
    """
    from iosched.jobs.batching.replace import replace_members
    from iosched.models.composition.members import members_of

    named = parse_named(texts)
    sources = [input_file(file), *(input_file(each.source) for each in named)]
    check_destinations([files.model, files.schedule], inputs=sources, as_json=as_json)
    refuse_terminal(files.model)
    document, whole = read_schedule_and_model(file, None)
    if whole is None:
        raise UsageError(f"{file} is a schedule: give the file that 'iosched batch' wrote")
    members = {member.name: member for member in members_of(whole.proto)}
    new = {}
    for each in named:
        inputs = members[each.name].inputs.items() if each.name in members else ()
        shapes = {own: whole.bindings[called] for own, called in inputs if called in whole.bindings}
        new[each.name] = read_alike(each.source, shapes)
    found = replace_members(whole, document, new)
    _write(found, files)
    if as_json:
        unshared = {name: list(weights) for name, weights in found.unshared.items()}
        emit_json({"output": str(files.model), "replaced": list(new), "unshared": unshared})
    _report(found, list(new), files, to_stderr=as_json or files.model.path is None)


def _write(found: Replacement, files: Written) -> None:
    from iosched.jobs.annotate import annotated
    from iosched.models.export import write_model

    data = write_model(annotated(found.model, found.document), found.model.weights, files.model.path)
    if data is not None:
        write(files.model, data)
    if files.schedule is not None:
        write(files.schedule, found.document.to_json().encode())


def _report(found: Replacement, names: Sequence[str], files: Written, *, to_stderr: bool) -> None:
    lines = [
        f"{name}: {len(weights)} weights that it had together with other models are its own now."
        for name, weights in found.unshared.items()
        if weights
    ]
    paths = [str(each) for each in (files.model, files.schedule) if each is not None and each.path is not None]
    lines += [f"Replaced {', '.join(names)}.", *([f"Wrote {' and '.join(paths)}."] if paths else [])]
    for line in lines:
        note(line) if to_stderr else click.echo(line)
