"""PyTorch on an attached GPU, as a peer."""

from __future__ import annotations

import onnx

from iosched.models.errors import DeviceError
from iosched.models.export import write_model
from iosched.profiler.peers.place import GpuPlace
from iosched.runtime.executor import Candidate


def open_torch(way: str, place: GpuPlace) -> Candidate:
    """Opens PyTorch on the network that onnx2torch makes of the model.

    Args:
        way: how PyTorch runs it, a key of `torch_ways.WAYS`.
        place: the GPU, the model and its inputs.

    Raises:
        DeviceError: PyTorch or onnx2torch is not installed, or one of them cannot handle this model.
    """
    try:
        from onnx2torch import convert

        from iosched.profiler.peers.torch_ways import open_way
    except ImportError as error:
        raise DeviceError(f"{error.name} is not installed; install it with: pip install torch onnx2torch") from error
    proto = onnx.load_from_string(write_model(place.model.proto, place.model.weights, None) or b"")
    try:
        network = convert(proto)
    except (NotImplementedError, RuntimeError, ValueError, KeyError) as error:
        raise DeviceError(f"onnx2torch cannot convert this model: {error}") from error
    arrays = [place.inputs[spec.name] for spec in place.model.graph.inputs]
    run = open_way(way, network, arrays, place.precision)
    notes = (f"PyTorch ran with images {run.layout}, which was faster.",)
    return Candidate(run.time, notes=lambda: notes)
