"""The job `export`: writes a model with a plan file, which runs it without Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from iosched.jobs.loading.plan import find_exported, open_plan, plan_device
from iosched.models.dynamic_batch import DynamicBatchModel
from iosched.models.errors import IoschedError, UsageError
from iosched.models.export import write_model
from iosched.models.initializers import is_external, read_weights
from iosched.models.load import UnboundModel, read_unbound
from iosched.models.model import Model
from iosched.models.plan_entry import PLAN_KEY, PlanEntry
from iosched.models.source import StrPath, read_proto
from iosched.runtime.plan_files import WrittenProgram
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.transfer import fitted


@dataclass(frozen=True)
class ExportResult:
    """The files that `export` wrote.

    Attributes:
        model: the ONNX file.
        plan: the plan file next to it.
        lanes: threads of a run.
        notes: sentences for the user.
    """

    model: Path
    plan: Path
    model_nbytes: int
    plan_nbytes: int
    lanes: int
    programs: tuple[WrittenProgram, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class PlanCheck:
    """Whether a plan file is used on this machine; `reason` says why not."""

    model: Path
    plan: Path
    reason: str | None

    @property
    def is_used(self) -> bool:
        """Whether the plan file is used."""
        return self.reason is None


def export(
    source: StrPath, folder: StrPath | None = None, *, overwrite: bool = False, threads: int | None = None
) -> ExportResult:
    """Writes an optimized model with a plan file, for machines of this kind.

    >>> result = iosched.export("model.iosched.onnx", "model.plan")
    >>> result.model.name, result.plan.name
    ('model.onnx', 'model.plan')
    >>> with iosched.load("model.plan") as model:
    ...     model.run({"x": np.ones((1, 8, 6, 6), np.float32)})["y"].shape
    (1, 16, 6, 6)

    Args:
        source: the path of a file from `optimize` or `batch`, with a schedule for CPUs.
        folder: where to write; default: a folder STEM.plan in the working folder.
        overwrite: whether to replace files.
        threads: the number of CPU cores; by default all of one socket that affinity and quota allow.

    Raises:
        UsageError: there is no schedule for CPUs, parts of the model need Python, or a file exists.
        InvalidModelError: the file is no model that can be run.
        InvalidScheduleError: the schedule in it is broken.
        DeviceError: this machine, or its onnxruntime, cannot run plan files.
        OSError: the files cannot be written.
    """
    device = plan_device()
    device.check_plans()
    path = Path(source)
    stem = path.name.removesuffix(".onnx").removesuffix(".iosched")
    target = Path(f"{stem}.plan") if folder is None else Path(folder)
    names = [f"{stem}.plan", f"{stem}.onnx.data", f"{stem}.onnx"]
    if not overwrite and (present := [name for name in names if (target / name).exists()]):
        raise UsageError(f"{target / present[0]} exists: choose another folder, or overwrite it")
    unbound = read_unbound(path)
    scheduled = list(_scheduled(unbound))
    with _folder(target) as room:
        plan, model = room / names[0], room / names[2]
        _write_model(path, model)
        dynamic = unbound.schedules_json is not None
        written = device.write_plan(plan, model, scheduled, threads, dynamic_batch=dynamic)
        with model.open("ab") as file:
            file.write(PlanEntry(plan.name, written.checksum).encoded())
        open_plan(find_exported(room), threads=threads).close()
        for name in names:
            if (room / name).exists():
                (room / name).replace(target / name)
            else:
                (target / name).unlink(missing_ok=True)  # weights of a replaced model
    plan, model = target / plan.name, target / model.name
    notes = tuple(_notes(scheduled[0][1]))
    sizes = model.stat().st_size, plan.stat().st_size
    return ExportResult(model, plan, *sizes, written.lanes, written.programs, notes)


def check(source: StrPath) -> PlanCheck:
    """Whether the plan of an exported model is used on this machine.

    Args:
        source: the folder that `export` wrote, or the ONNX file in it.

    Raises:
        UsageError: there is no exported model.
    """
    exported = find_exported(Path(source))
    try:
        open_plan(exported).close()
    except (IoschedError, OSError) as error:
        return PlanCheck(exported.path, exported.plan, str(error))
    return PlanCheck(exported.path, exported.plan, None)


@contextmanager
def _folder(target: Path) -> Iterator[Path]:
    """A temporary folder inside `target`; at the end, also deletes `target` if it is empty."""
    target.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(prefix=".export-", dir=target) as room:
            yield Path(room)
    finally:
        if not any(target.iterdir()):
            target.rmdir()


def _scheduled(unbound: UnboundModel) -> Iterator[tuple[Model, ScheduleDocument]]:
    """The model at each set of input shapes for which the file has a schedule, and that schedule."""
    if unbound.schedules_json is not None:
        schedules = BatchSchedules.from_json(unbound.schedules_json)
        batches = DynamicBatchModel(unbound, schedules.inputs)
        for size, document in schedules.by_size.items():
            yield _checked(batches.at(size), document)
        return
    model = unbound.bound()
    if model.schedule_json is None:
        raise UsageError(f"{unbound.name} has no schedule to export: run iosched optimize first")
    yield _checked(model, ScheduleDocument.from_json(model.schedule_json))


def _checked(model: Model, document: ScheduleDocument) -> tuple[Model, ScheduleDocument]:
    name = document.device_name
    if document.device_kind != "cpu":
        raise UsageError(f"the schedule is for {name}, but a plan runs on CPUs: optimize the model with --device cpu")
    if document.precision != DEFAULT_PRECISION:
        raise UsageError(
            f"the schedule is for {document.precision} on OpenVINO: optimize the model without --precision"
        )
    return model, fitted(document, model)


def _write_model(source: Path, target: Path) -> None:
    """Copies a model, with all its weights and without an older plan."""
    proto = read_proto(source)
    metadata = [item for item in proto.metadata_props if item.key != PLAN_KEY]
    if not any(map(is_external, proto.graph.initializer)) and len(metadata) == len(proto.metadata_props):
        target.write_bytes(source.read_bytes())
        return
    del proto.metadata_props[:]
    proto.metadata_props.extend(metadata)
    write_model(proto, read_weights(proto, source), target)


def _notes(document: ScheduleDocument) -> Iterator[str]:
    if document.library is not None:
        yield f"{document.library} was the fastest and had shipped. The plan runs the schedule in the file."
    elif document.shipped == "sequential":
        yield "The schedule in the file runs one operator after another, which had shipped as the fastest."
    if document.teams is not None and document.teams.requests > 1:
        yield f"The file is for {document.teams.text}. The plan runs one request at a time, on all cores."
