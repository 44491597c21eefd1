"""The verdict where a CPU is asked for a precision that no schedule runs in: OpenVINO ships, with its error told."""

from __future__ import annotations

from dataclasses import asdict, replace

from iosched.jobs.comparison import OPENVINO, REFERENCE, compare_libraries
from iosched.jobs.pace import Pace
from iosched.jobs.progress import Observer
from iosched.jobs.verdict import Verdict
from iosched.models.errors import MismatchError
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.measuring.in_turn import interference_notes
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.peers.openvino import PlainOpenvino
from iosched.profiler.store.latencies import ModelLatencies
from iosched.scheduler.document import WITHOUT_OPENVINO
from iosched.scheduler.search import SearchResult

_NOT_FASTER = (
    "In {precision} the model was not found to be faster than on plain onnxruntime in fp32: without --precision it may"
    " run faster, and more exactly."
)


def reduced_verdict(
    here: OpenModelHere,
    only_way: PlainOpenvino,
    found: SearchResult,
    latencies: ModelLatencies,
    pace: Pace,
    observer: Observer,
) -> Verdict:
    """The verdict on a model that runs in the precision that was asked for by `only_way` alone.

    There is nothing of the same precision to compare it with. Plain onnxruntime is measured in turn with it all the
    same, in 32-bit floats, for the user to know what the precision buys.

    Raises:
        DeviceError: OpenVINO cannot run the model.
        MismatchError: the outputs are further off from those in 32-bit floats than 16-bit floats explain.
    """
    precision = only_way.precision
    try:
        agreement = only_way.agreement
    except MismatchError as error:
        raise MismatchError(f"in {precision} {error}\nLeave --precision out") from error
    measured, setting = compare_libraries(latencies, here, only_way, pace, observer)
    running = here.running(None, {})
    runtime = {
        **running.runtime,
        **({} if setting is None else {"reference": asdict(setting)}),
        "precision": precision,
        "error": {"max_abs": agreement.max_abs, "max_rel": agreement.max_rel},
        WITHOUT_OPENVINO: REFERENCE,
    }
    faster = compare(measured[REFERENCE], measured[OPENVINO])
    slow = () if faster is not None and faster.is_faster else (_NOT_FASTER.format(precision=precision),)
    off = f"{agreement.max_rel:.2g} of their scale, {agreement.max_abs:.2g} at most"
    n_rounds = min(len(each.samples_us) for each in measured.values())
    return Verdict(
        shipped="openvino",
        reason=f"nothing else runs in {precision} here; its outputs are off from those in fp32 by {off}",
        schedule=here.units.expanded(found.schedule),
        latencies=measured,
        kernels_before=running.n_kernels,
        running=replace(
            running,
            n_kernels=None,
            runtime=runtime,
            notes=(*pace.notes(n_rounds), *interference_notes(measured), *slow, *running.notes),
        ),
    )
