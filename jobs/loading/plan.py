"""Opens the plan file of an exported model, if it fits the model and this machine."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TypeVar

from iosched.jobs.run import users_level
from iosched.models.errors import DeviceError, ExecutionError, PlanWarning, UsageError
from iosched.models.plan_entry import ExportedModel, exported_models
from iosched.profiler.devices.resolve import resolve
from iosched.runtime.cores import cpu_count
from iosched.runtime.plan_files import PlanModel, WritesPlans

T = TypeVar("T")

_DEVICES = ("auto", "cpu")


def plan_device() -> WritesPlans:
    """The device of plan files: this machine's CPU."""
    device = resolve("cpu")
    assert isinstance(device, WritesPlans)
    return device


def find_exported(path: Path) -> ExportedModel:
    """The exported model at a path, or the one in a folder.

    Raises:
        UsageError: there is none, or there are several.
    """
    if not path.is_dir():
        found = ExportedModel.at(path)
        if found is None:
            raise UsageError(f"{path} is not an exported model: write one with 'iosched export'")
        return found
    all_found = list(exported_models(path))
    if len(all_found) != 1:
        count = len(all_found) or "no"
        raise UsageError(
            f"{path} has {count} exported models: pass the path of one, or write one with 'iosched export'"
        )
    return all_found[0]


def open_plan(exported: ExportedModel, *, threads: int | None = None) -> PlanModel:
    """Opens the plan of an exported model.

    Args:
        threads: the requested number of CPU cores; by default that of the plan.

    Raises:
        ExecutionError: it does not fit the model, the machine or `threads`; the error names the reason.
        DeviceError: the compiled executor or onnxruntime is missing.
    """
    opened = plan_device().open_plan(exported.plan)
    try:
        if (reason := _misfit(opened, exported, threads)) is not None:
            raise ExecutionError(reason)
    except BaseException:
        opened.close()
        raise
    return opened


def opened_plan(source: object, *, device: str, threads: int | None, strict: bool) -> PlanModel | None:
    """The open plan of a file; None if it has none, or one that does not fit.

    Args:
        source: what `iosched.load` takes.
        strict: whether a plan that does not fit is an error.

    Raises:
        UsageError: with `strict`, there is no plan.
        ExecutionError: with `strict`, the plan does not fit.
        DeviceError: with `strict`, the compiled executor or onnxruntime is missing.

    Warns:
        PlanWarning: the plan does not fit; the warning names the reason.
    """
    exported = ExportedModel.at(Path(source)) if isinstance(source, str | os.PathLike) else None
    if exported is None or device not in _DEVICES:
        if strict:
            raise UsageError("the model has no plan for this device: write one with 'iosched export'")
        return None
    try:
        return open_plan(exported, threads=threads)
    except (ExecutionError, DeviceError, OSError) as error:
        if strict:
            raise
        text = f"The plan of {exported.path.name} is not used: {str(error).rstrip('.')}."
        warnings.warn(text, PlanWarning, stacklevel=users_level())
        return None


def path_in(source: T) -> T | Path:
    """The exported model in a folder; any other source as it is. Raises a UsageError as `find_exported`."""
    if isinstance(source, str | os.PathLike) and Path(source).is_dir():
        return find_exported(Path(source)).path
    return source


def _misfit(opened: PlanModel, exported: ExportedModel, threads: int | None) -> str | None:
    if opened.checksum != exported.entry.checksum:
        return f"{exported.plan.name} is another plan than the one that {exported.path.name} names"
    if opened.model_sha256 != exported.sha256():
        return f"{exported.path.name} has changed since it was exported"
    if opened.lanes > cpu_count():
        return f"the plan needs {opened.lanes} cores, but may use {cpu_count()}"
    if threads not in (None, opened.lanes):
        return f"the plan is for {opened.lanes} threads, not {threads}"
    return None
