"""`InferenceSession`, a replacement for that of onnxruntime."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import onnx
from onnx import TypeProto

from iosched.jobs.loading.batches import LoadedBatches, load_any
from iosched.jobs.loading.loaded_model import LoadedModel
from iosched.models.errors import DeviceError, InvalidModelError, UsageError
from iosched.models.metadata import SCHEDULE_KEY, SCHEDULES_KEY
from iosched.models.plan_entry import ExportedModel
from iosched.models.shapes.inference import type_text
from iosched.models.source import Source, read_proto
from iosched.runtime.session import load_onnxruntime


class InferenceSession:
    """Runs a model as `onnxruntime.InferenceSession` does: one import changes, and nothing else.

    An optimized model runs by its schedule, in the way that `optimize` found fastest. Any other model runs in
    onnxruntime's own session with all settings.

    >>> session = iosched.InferenceSession("model.iosched.onnx", providers=["CPUExecutionProvider"])
    >>> x = session.get_inputs()[0]
    >>> x.name, x.shape, x.type
    ('x', [1, 8, 6, 6], 'tensor(float)')
    >>> (y,) = session.run(["y"], {"x": np.ones((1, 8, 6, 6), np.float32)})
    >>> y.shape
    (1, 16, 6, 6)

    Several threads may call `run`. Wrong names, types and shapes raise onnxruntime's errors, which are also
    `iosched.UsageError`.
    """

    def __init__(
        self,
        path_or_bytes: Source,
        sess_options: Any = None,
        providers: Sequence[Provider] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        strict: bool = False,
        **kwargs: Any,
    ) -> None:
        """Opens a model.

        For an optimized model, `sess_options.intra_op_num_threads` is the number of CPU cores to use; other options are
        ignored. With providers that leave out CUDA, it runs on the CPU; those that run no schedules are left out with a
        warning.

        Args:
            path_or_bytes: the path of a model, or of a folder from `export`; or the bytes of a model.
            sess_options: onnxruntime's `SessionOptions`.
            providers: names of providers, or pairs of a name and options; by default, for an optimized model, the kind
                of device that it was optimized for.
            provider_options: options of each provider, in the order of `providers`.
            strict: whether to fail where an optimized model has no plan file that fits.
            **kwargs: further options of onnxruntime; ignored for an optimized model.

        Raises:
            InvalidModelError: an optimized model is broken.
            InvalidScheduleError: the schedule in it is broken, or does not fit it.
            UsageError: settings do not go together with a schedule.
            DeviceError: the device is not attached, or onnxruntime is not installed.
            Exception: onnxruntime's errors, for any other file.
        """
        self._session: Any
        if _is_scheduled(path_or_bytes):
            device, threads = session_target(sess_options, providers, provider_options)
            model = load_any(path_or_bytes, device=device, threads=threads, strict=strict)
            self._session = ScheduledSession(model, sess_options)
            return
        own = load_onnxruntime().InferenceSession
        self._session = own(path_or_bytes, sess_options, providers, provider_options, **kwargs)

    @property
    def is_scheduled(self) -> bool:
        """Whether the model runs by the schedule inside it; if not, plain onnxruntime or OpenVINO runs it.

        For a file for several batch sizes: whether a schedule ships at one of them.
        """
        return isinstance(self._session, ScheduledSession) and self._session.is_scheduled

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Runs the model once.

        Args:
            output_names: the outputs to return; None or none for all.
            input_feed: arrays by the names of inputs.
            run_options: onnxruntime's `RunOptions`; ignored for an optimized model, except `terminate`.

        Returns:
            The outputs in the order of `output_names`, in new arrays.

        Raises:
            ValueError: an input is missing.
            InvalidArgument: onnxruntime's: a name is unknown, or an array has another type or shape.
            ExecutionError: a kernel of an optimized model fails.
        """
        found: list[Any] = self._session.run(output_names, input_feed, run_options)
        return found

    def get_inputs(self) -> list[NodeArg]:
        """Name, shape and type of each input."""
        return list(self._session.get_inputs())

    def get_outputs(self) -> list[NodeArg]:
        """Name, shape and type of each output."""
        return list(self._session.get_outputs())

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Initializers that can be overridden; an optimized model has none."""
        return list(self._session.get_overridable_initializers())

    def get_modelmeta(self) -> ModelMetadata:
        """The model's metadata."""
        found: ModelMetadata = self._session.get_modelmeta()
        return found

    def get_providers(self) -> list[str]:
        """The providers that run the model, in onnxruntime's names."""
        return list(self._session.get_providers())

    def get_session_options(self) -> Any:
        """The settings of the session, as onnxruntime's `SessionOptions`."""
        return self._session.get_session_options()

    def close(self) -> None:
        """Frees the resources of an optimized model. May be called again."""
        if isinstance(self._session, ScheduledSession):
            self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        """Other attributes of onnxruntime's session, for a model that it runs.

        Raises:
            AttributeError: there is no such attribute, or not for an optimized model.
        """
        session = vars(self).get("_session")
        if session is None or isinstance(session, ScheduledSession):
            raise AttributeError(f"InferenceSession has no {name!r} for an optimized model: use run")
        return getattr(session, name)


def _is_scheduled(source: Source) -> bool:
    """Whether a model has schedules; unreadable files are left to onnxruntime."""
    if not isinstance(source, str | bytes | os.PathLike):
        return False
    if not isinstance(source, bytes) and (Path(source).is_dir() or ExportedModel.at(Path(source)) is not None):
        return True
    try:
        proto = read_proto(source)
    except InvalidModelError:
        return False
    return not {item.key for item in proto.metadata_props}.isdisjoint((SCHEDULE_KEY, SCHEDULES_KEY))


class ScheduledSession:
    """Answers as an onnxruntime session does."""

    def __init__(self, model: LoadedModel | LoadedBatches, options: Any = None) -> None:
        """Takes over a loaded model and the user's `sess_options`."""
        self._model, self._options = model, options
        self._inputs = [spec.name for spec in model.inputs]
        self._outputs = [spec.name for spec in model.outputs]
        self._ort_value: Any = load_onnxruntime().OrtValue

    @cached_property
    def _proto(self) -> onnx.ModelProto:
        return self._model.proto if isinstance(self._model, LoadedBatches) else self._model.model.proto

    @property
    def is_scheduled(self) -> bool:
        """Whether a schedule runs the model, see `InferenceSession.is_scheduled`."""
        return self._model.is_scheduled

    def run(self, output_names: Sequence[str] | None, feed: Mapping[str, Any], run_options: Any) -> list[Any]:
        """Runs once; see `InferenceSession.run`."""
        if run_options is not None and run_options.terminate:
            raise UsageError("run_options.terminate is set, so the run does not start")
        wanted = self._known(output_names) if output_names else self._outputs
        for name in self._inputs:
            if name not in feed:
                missing = [each for each in self._inputs if each not in feed]
                raise MissingInputError(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")
        kind = self._ort_value
        for value in feed.values():
            if isinstance(value, kind):
                feed = {name: each.numpy() if isinstance(each, kind) else each for name, each in feed.items()}
                break
        try:
            found = self._model.run(feed)
        except UsageError as error:
            raise invalid_argument(str(error)) from error
        return [found[name] for name in wanted]

    def get_inputs(self) -> list[NodeArg]:
        """The inputs of the model."""
        return [node_arg(value) for value in self._proto.graph.input]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs of the model."""
        return [node_arg(value) for value in self._proto.graph.output]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: optimizing fixes them."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """The model's metadata."""
        return metadata_of(self._proto)

    def get_providers(self) -> list[str]:
        """The providers that run the model, in onnxruntime's names."""
        return [CUDA, CPU] if self._model.is_on_gpu else [CPU]

    def get_session_options(self) -> Any:
        """The settings that the session was made with, or onnxruntime's own."""
        return load_onnxruntime().SessionOptions() if self._options is None else self._options

    def _known(self, names: Sequence[str]) -> Sequence[str]:
        if unknown := [name for name in names if name not in self._outputs]:
            raise invalid_argument(f"Invalid output name: {unknown[0]}; the outputs are {', '.join(self._outputs)}")
        return names

    def close(self) -> None:
        """Frees sessions, buffers, threads and cores."""
        self._model.close()


class MissingInputError(UsageError, ValueError):
    """An input is missing: onnxruntime raises `ValueError` here."""


def invalid_argument(text: str) -> UsageError:
    """The error for an unknown name or a wrong type or shape, also an onnxruntime `InvalidArgument`."""
    return _invalid_argument()(text)


@cache
def _invalid_argument() -> type[UsageError]:
    try:
        load_onnxruntime()
    except DeviceError:
        return UsageError
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

    return type("InvalidArgument", (UsageError, InvalidArgument), {"__doc__": invalid_argument.__doc__})


CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
_KNOWN = (CPU, CUDA)

Provider = str | tuple[str, Mapping[str, Any]]


def session_target(
    options: Any, providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> tuple[str, int | None]:
    """Device and threads (None: all) of a session for `LoadedModel`; refuses contradictory options."""
    return _device(providers, provider_options), _threads(options)


def _threads(options: Any) -> int | None:
    if options is None:
        return None
    for name, wrong, way_out in (
        ("enable_profiling", options.enable_profiling, "trace it with 'iosched run --trace'"),
        ("optimized_model_filepath", options.optimized_model_filepath, "'iosched optimize' writes the optimized model"),
        (
            "graph_optimization_level",
            options.graph_optimization_level.name != "ORT_ENABLE_ALL",
            "the schedule applies to the optimized graph; load the original model instead",
        ),
    ):
        if wrong:
            raise UsageError(f"sess_options.{name} cannot be combined with a schedule: {way_out}")
    return options.intra_op_num_threads or None


def _device(providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[str, Any]] | None) -> str:
    """A GPU only if CUDA is a provider, with the number in its options."""
    if not providers:
        return "auto"
    if provider_options is not None and len(provider_options) != len(providers):
        raise UsageError("'providers' and 'provider_options' must have the same length if both are given")
    options = provider_options or [{}] * len(providers)
    named = {name: {**given, **more} for (name, given), more in zip(map(_pair, providers), options, strict=True)}
    for name in named:
        if name not in _KNOWN:
            warnings.warn(
                f"Provider {name!r} cannot run schedules and is ignored: use {' or '.join(_KNOWN)}", stacklevel=4
            )
    if CUDA not in named:
        return "cpu"
    number = named[CUDA].get("device_id")
    return "auto" if number is None else f"cuda:{number}"


def _pair(provider: Provider) -> tuple[str, Mapping[str, Any]]:
    return (provider, {}) if isinstance(provider, str) else provider


_NO_VERSION = 2**63 - 1  # onnxruntime's value if the file has none


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model.

    Attributes:
        shape: a number, name or None for each dimension; empty unless a tensor.
        type: onnxruntime's text, "tensor(float)" or "seq(map(int64,tensor(float)))".
    """

    name: str
    shape: list[int | str | None]
    type: str


@dataclass(frozen=True)
class ModelMetadata:
    """The model's metadata, by onnxruntime's names."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: Mapping[str, str]


def node_arg(value: onnx.ValueInfoProto) -> NodeArg:
    """An input or output as the graph declares it."""
    return NodeArg(value.name, _shape(value.type), type_text(value.type, _element))


def metadata_of(proto: onnx.ModelProto) -> ModelMetadata:
    """The metadata of a model's file."""
    return ModelMetadata(
        proto.producer_name,
        proto.graph.name,
        proto.domain,
        proto.doc_string,
        proto.graph.doc_string,
        proto.model_version if proto.HasField("model_version") else _NO_VERSION,
        {item.key: item.value for item in proto.metadata_props},
    )


def _shape(kind: TypeProto) -> list[int | str | None]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in kind.tensor_type.shape.dim]


def _element(number: int) -> str:
    return str(onnx.TensorProto.DataType.Name(number)).lower()
