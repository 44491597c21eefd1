"""A session on an optimized model, which runs by its schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from iosched.jobs.as_onnxruntime.refusals import MissingInputError, invalid_argument
from iosched.jobs.as_onnxruntime.settings import CPU, CUDA
from iosched.jobs.as_onnxruntime.values import ModelMetadata, NodeArg, metadata_of, node_arg
from iosched.jobs.loaded import LoadedModel
from iosched.jobs.loaded_batches import LoadedBatches
from iosched.models.errors import UsageError
from iosched.runtime.session import load_onnxruntime


class ScheduledSession:
    """Answers as an onnxruntime session does."""

    def __init__(self, model: LoadedModel | LoadedBatches, options: Any = None) -> None:
        """Takes over a model that is ready to run, and what a user gave as `sess_options`."""
        self._model, self._options = model, options
        self._proto = model.proto if isinstance(model, LoadedBatches) else model.model.proto
        self._inputs = [value.name for value in self._proto.graph.input]
        self._outputs = [value.name for value in self._proto.graph.output]
        self._ort_value: Any = load_onnxruntime().OrtValue

    @property
    def is_scheduled(self) -> bool:
        """Whether a schedule runs the model, see `InferenceSession.is_scheduled`."""
        return self._model.is_scheduled

    def run(self, output_names: Sequence[str] | None, feed: Mapping[str, Any], run_options: Any) -> list[Any]:
        """Runs once; see `InferenceSession.run`."""
        if run_options is not None and run_options.terminate:
            raise UsageError("run_options.terminate is set: a run that is to end at once is not begun")
        wanted = self._known(output_names) if output_names else self._outputs
        if missing := [name for name in self._inputs if name not in feed]:
            raise MissingInputError(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")
        kind = self._ort_value
        try:
            found = self._model.run(
                {name: value.numpy() if isinstance(value, kind) else value for name, value in feed.items()}
            )
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
        """None: weights that are inputs with a default are fixed when a model is optimized."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says about itself."""
        return metadata_of(self._proto)

    def get_providers(self) -> list[str]:
        """What runs the model, in onnxruntime's names."""
        return [CUDA, CPU] if self._model.is_on_gpu else [CPU]

    def get_session_options(self) -> Any:
        """The settings that the session was made with, or onnxruntime's own."""
        return load_onnxruntime().SessionOptions() if self._options is None else self._options

    def _known(self, names: Sequence[str]) -> Sequence[str]:
        if unknown := [name for name in names if name not in self._outputs]:
            raise invalid_argument(f"Invalid output name: {unknown[0]}; there are {', '.join(self._outputs)}")
        return names

    def close(self) -> None:
        """Frees sessions, buffers, threads and cores."""
        self._model.close()
