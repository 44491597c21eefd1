"""Writes plan files of schedules for this CPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.models.plan_entry import model_sha256
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.native import NativeRuntime
from iosched.runtime.cpu.plan_file import PlanAbout, PlanProgram, check_types, write_plan
from iosched.runtime.cpu.provider import graph_digests
from iosched.runtime.cpu.team_model import TeamBackends, compile_divided
from iosched.runtime.plan_files import WrittenPlan, WrittenProgram
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.document import ScheduleDocument


def write_cpu_plan(
    path: Path, exported: Path, scheduled: Sequence[tuple[Model, ScheduleDocument]], lanes: int, *, dynamic_batch: bool
) -> WrittenPlan:
    """Write a plan file, see `WritesPlans`."""
    with ExitStack() as opened:
        programs = [_program(opened, model, document, lanes) for model, document in scheduled]
        about = PlanAbout(
            onnxruntime=load_onnxruntime().__version__,
            lanes=lanes,
            digests=graph_digests(exported),
            model_sha256=model_sha256(exported, exported.stat().st_size),
            has_dynamic_batch=dynamic_batch,
        )
        with path.open("wb") as file:
            checksum = write_plan(file, about, programs, opened.enter_context(NativeRuntime()))
        return WrittenPlan(checksum, lanes, tuple(map(_written, programs)))


def _program(opened: ExitStack, model: Model, document: ScheduleDocument, lanes: int) -> PlanProgram:
    check_types(model)
    backend = opened.enter_context(closing(CpuBackend(model, lanes=lanes, units=document.units)))
    if not backend.is_supported():
        raise UsageError("onnxruntime must run this model as a whole, so there is no plan to export")
    teams = document.teams_on(lanes)
    if teams is None or teams.requests > 1:
        compiled = backend.compile(document.schedule)
    else:
        backends = opened.enter_context(closing(TeamBackends(model, teams.lanes(lanes))))
        (compiled,) = compile_divided(backends, document.schedule, teams, backend.cpus)
    opened.callback(compiled.close)
    return PlanProgram.of(model, compiled)


def _written(program: PlanProgram) -> WrittenProgram:
    kernels = program.encoded.kernels
    return WrittenProgram(
        inputs={spec.name: spec.shape or () for spec in program.inputs},
        kernels=program.compiled.kernel_count,
        sessions=sum(kernel.invoked is None for kernel in kernels),
    )
