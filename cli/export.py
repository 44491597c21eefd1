"""`iosched export`: write a model with a plan file, for runtimes without Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from iosched.cli.common.complete import complete_file
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import json_option, threads_option, verbosity_options
from iosched.cli.common.output import emit_json, note
from iosched.cli.common.tables import print_pairs
from iosched.cli.common.text import shape_text
from iosched.cli.help import Command
from iosched.models.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from iosched.jobs.export import ExportResult


@click.command(name="export", cls=Command, short_help="Write MODEL with a plan file.", basic="output check json")
@click.argument("model", metavar="MODEL", shell_complete=complete_file)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for STEM.onnx and STEM.plan.  [default: STEM.plan]",
)
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@click.option(
    "--check",
    is_flag=True,
    help="Write nothing: exit 0 if the plan of MODEL, a folder or file of 'export', is used on this machine, else 3.",
)
@threads_option
@json_option
@verbosity_options
def command(model: str, output: Path | None, overwrite: bool, check: bool, threads: int | None, as_json: bool) -> None:
    """Write the optimized MODEL with a plan file, which runs it on machines of this kind without Python.

    A plan is for one version of onnxruntime, one kind of CPU and one number of cores. It runs the schedule in MODEL,
    even if a library has shipped.

    \b
    Examples:
      iosched export model.iosched.onnx
      iosched export model.iosched.onnx -o serving
      iosched export --check serving
    """
    if check:
        if output is not None or overwrite or threads is not None:
            raise UsageError("--check writes nothing: leave out --output, --overwrite and --threads")
        _check(model, as_json=as_json)
        return
    from iosched.jobs.export import export

    if model == "-":
        raise UsageError("MODEL must be a file: its folder and name are those of the plan")
    found = export(model, output, overwrite=overwrite, threads=threads)
    for line in found.notes:
        note(line)
    if as_json:
        emit_json(json_object(found, "model plan model_nbytes plan_nbytes lanes programs notes"))
        return
    _print(found)


def _print(found: ExportResult) -> None:
    rows = [
        ("model", f"{found.model} ({found.model_nbytes / 1e6:.1f} MB)"),
        ("plan", f"{found.plan} ({found.plan_nbytes / 1e6:.1f} MB)"),
    ]
    for each in found.programs:
        shapes = ", ".join(f"{name} {shape_text(list(shape))}" for name, shape in each.inputs.items())
        rows.append((shapes, f"{each.kernels} kernel calls; {each.sessions} kernels are sessions"))
    print_pairs(f"exported for {found.lanes} threads", rows, to_stderr=False)


def _check(model: str, *, as_json: bool) -> None:
    from iosched.jobs.export import check

    found = check(model)
    if as_json:
        emit_json(json_object(found, "model plan used=is_used reason"))
    if found.reason is not None:
        raise DeviceError(f"{found.plan} is not used here: {found.reason}")
    if not as_json:
        note(f"{found.plan} is used here.")
