"""`iosched batch --replace`: other weights for models of a file, without a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from iosched.cli.members import parse_named
from iosched.cli.optimized_files import OptimizedFiles, print_lines, wrote
from iosched.cli.output import check_destinations, emit_json, refuse_terminal
from iosched.cli.source import input_file, read_alike, read_schedule_and_model
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.jobs.batching.replace import Replacement


def replace(texts: Sequence[str], file: str, files: OptimizedFiles, *, as_json: bool) -> None:
    """Writes the file with the weights of the models that `--replace` names.

    Args:
        texts: `a=FILE` each.
        file: the file of several models.
        files: where the new one is written.
        as_json: whether a JSON object is printed.
    """
    from iosched.jobs.annotate import annotated
    from iosched.jobs.batching.replace import replace_members
    from iosched.models.composition.members import members_of

    named = parse_named(texts)
    sources = [input_file(file), *(input_file(each.source) for each in named)]
    check_destinations(files.outputs, inputs=sources, as_json=as_json)
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
    files.write(annotated(found.model, found.document), found.model.weights, found.document.to_json())
    if as_json:
        emit_json({"output": str(files.model), "replaced": list(new), "unshared": found.unshared})
    _report(found, list(new), files, to_stderr=as_json or files.model.path is None)


def _report(found: Replacement, names: Sequence[str], files: OptimizedFiles, *, to_stderr: bool) -> None:
    lines = [
        f"{name}: {len(weights)} weights that it had together with other models are its own now."
        for name, weights in found.unshared.items()
        if weights
    ]
    print_lines([*lines, f"Replaced {', '.join(names)}.", *wrote(files.outputs)], to_stderr=to_stderr)
