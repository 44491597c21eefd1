"""Describes a worker before its first task, and checks that its machine is quiet enough to measure on."""

from __future__ import annotations

import platform
from contextlib import closing
from functools import cache

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from iosched.jobs.pool.messages import Facts
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.profiler.devices.device import ProfiledDevice, attached
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.stages import MOST_TRIES
from iosched.profiler.store.tables import CalibrationRow, Row, StageRow
from iosched.scheduler.cost import Disturbable
from iosched.scheduler.schedule import Stage, Strategy

_CHANNELS, _SIZE = 16, 28


def probed(device: ProfiledDevice, settings: OpenSettings, threads: int) -> Facts:
    """Opens and measures a small model on the device, which shows that the device works.

    Repeats the measurement a few times while other processes interfere.

    Raises:
        DeviceError: a library is missing, or the device does not work.
    """
    rows: list[Row] = []
    disturbed: list[str] = []
    with (
        ProfileDatabase(None, on_kept=rows.extend) as database,
        closing(device.open(probe_model(), settings, database)) as opened,
    ):
        here = attached(opened)
        key, versions = here.cost.device, dict(here.measuring.versions)
        stage = Stage(Strategy.CONCURRENT, ((here.graph.operators[0].name,),))
        for _ in range(MOST_TRIES):
            here.cost.stage_latency_us(stage)
            found = [row for row in rows if isinstance(row, StageRow)]
            if not found or not found[-1].disturbed_by:
                disturbed = []
                break
            disturbed.append(found[-1].disturbed_by)
            if isinstance(here.cost, Disturbable):
                here.cost.try_again()
    return Facts(
        versions={"iosched": iosched_version(), "python": platform.python_version(), **versions},
        device=device.info.key,
        name=device.info.name,
        key=key,
        threads=threads,
        yardstick=tuple(row for row in rows if isinstance(row, CalibrationRow)),
        disturbed_by=tuple(disturbed),
    )


@cache
def probe_model() -> Model:
    """Returns a model of one small convolution, which takes milliseconds on any device."""
    values = np.random.default_rng(0).standard_normal((_CHANNELS, _CHANNELS, 3, 3)).astype(np.float32)
    shape = [1, _CHANNELS, _SIZE, _SIZE]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(values, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(proto.SerializeToString(), name="probe")
