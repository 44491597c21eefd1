"""Ways to serve several models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from iosched.jobs.load_test.model_process import ModelProcess
from iosched.jobs.loading.batches import LoadedBatches
from iosched.jobs.loading.loaded_model import LoadedModel
from iosched.jobs.serving.policy import DEFAULT_WAITING
from iosched.jobs.serving.served_models import ServedModels, serve_together
from iosched.models.graph import TensorSpec
from iosched.models.model import Model
from iosched.runtime.cores import allowed_cpus, has_whole_machine
from iosched.runtime.executor import Requests
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.openvino.openvino_model import open_requests
from iosched.runtime.reference import Reference, ReferenceSettings


@dataclass(frozen=True, eq=False)
class Served:
    """A model to serve.

    Attributes:
        inputs: of all its requests.
        expected: onnxruntime's outputs for them.
        lone_us: latency of onnxruntime in its default settings, without other requests.
    """

    model: Model
    inputs: Arrays
    expected: Arrays
    lone_us: float


Run = Callable[[], Mapping[str, Any]]
Opener = Callable[[Model], Reference | Requests | ModelProcess]


@dataclass(frozen=True, eq=False)
class Calls:
    """Models that threads of this process call, in order of arrival.

    Attributes:
        runs: calls a model, by its name.
        callers: the threads that call it; models may share them.
        frees: closes the models.
    """

    runs: Mapping[str, Run]
    callers: Mapping[str, ThreadPoolExecutor]
    frees: ExitStack

    def submit(self, model: str) -> Future[Mapping[str, Any]]:
        """Queues a run of the model for its callers."""
        return self.callers[model].submit(self.runs[model])

    def close(self) -> None:
        """Ends the callers, and frees the models."""
        for each in set(self.callers.values()):
            each.shutdown(cancel_futures=True)
        self.frees.close()


def calls(served: Mapping[str, Served], opener: Opener, callers: Mapping[str, ThreadPoolExecutor]) -> Calls:
    """Opens each model with `opener`; raises what it raises."""
    runs: dict[str, Run] = {}
    with ExitStack() as frees:
        for name, each in served.items():
            runnable = opener(each.model)
            frees.callback(runnable.close)
            runs[name] = partial(runnable.run, each.inputs)
        return Calls(runs, callers, frees.pop_all())


def open_iosched(served: Mapping[str, Served], threads: int) -> Calls:
    """All models on the same cores by iosched, without a policy."""
    together = serve_together({name: each.model for name, each in served.items()}, threads=threads)
    return calls_of(together, {name: each.inputs for name, each in served.items()})


def calls_of(together: ServedModels, inputs: Mapping[str, Arrays]) -> Calls:
    """Runs of models that are open; each request has a thread that waits for its cores."""
    frees = ExitStack()
    frees.callback(together.close)
    callers = ThreadPoolExecutor(together.cores + DEFAULT_WAITING * len(inputs))
    return Calls(runs_of(together, inputs), dict.fromkeys(inputs, callers), frees)


def runs_of(together: ServedModels, inputs: Mapping[str, Arrays]) -> Mapping[str, Run]:
    """A run of each model on fixed inputs."""
    return {name: partial(together.run, name, each) for name, each in inputs.items()}


def random_requests(together: ServedModels) -> Mapping[str, Arrays]:
    """Random inputs for each model, at its smallest batch size."""
    return {name: random_inputs(_inputs_of(model)) for name, model in together.models.items()}


def _inputs_of(model: LoadedModel | LoadedBatches) -> Sequence[TensorSpec]:
    if isinstance(model, LoadedModel):
        return model.inputs
    return model.model.at(model.schedules.batch_sizes[0]).graph.inputs


def default_settings(threads: int) -> ReferenceSettings:
    """onnxruntime's own choice on the whole machine, else `threads` threads."""
    is_whole = has_whole_machine() and threads == len(allowed_cpus()) > 1
    return ReferenceSettings("sequential", threads, binds_threads=is_whole)


def open_default(served: Mapping[str, Served], threads: int) -> Calls:
    """A session of onnxruntime for each model, in its default settings; `threads` requests call it at the same time."""
    return _open_sessions(served, default_settings(threads), threads)


def open_divided(served: Mapping[str, Served], threads: int) -> Calls:
    """A session of onnxruntime for each model, with its share of the threads."""
    return _open_sessions(served, ReferenceSettings("sequential", max(1, threads // len(served))), 1)


def _open_sessions(served: Mapping[str, Served], settings: ReferenceSettings, callers: int) -> Calls:
    return calls(served, lambda model: Reference(model, settings), _callers_each(served, callers))


def open_one_per_core(served: Mapping[str, Served], threads: int) -> Calls:
    """A session of onnxruntime for each model, with one thread for a request, and one request for each core."""
    return calls(served, Reference, dict.fromkeys(served, ThreadPoolExecutor(threads)))


def open_streams(served: Mapping[str, Served], threads: int) -> Calls:
    """OpenVINO's settings for throughput."""
    return calls(served, lambda model: Requests(open_requests(model, threads, threads)), _callers_each(served, threads))


def open_processes(served: Mapping[str, Served], threads: int) -> Calls:
    """A process for each model, with a session of onnxruntime in its default settings."""
    settings = default_settings(threads)
    return calls(served, lambda model: ModelProcess(model, settings), _callers_each(served, threads))


def _callers_each(served: Mapping[str, Served], count: int) -> Mapping[str, ThreadPoolExecutor]:
    return {name: ThreadPoolExecutor(count) for name in served}


OPENERS: Mapping[str, Callable[[Mapping[str, Served], int], Calls]] = {
    "iosched": open_iosched,
    "onnxruntime": open_default,
    "onnxruntime-divided": open_divided,
    "onnxruntime-sessions": open_one_per_core,
    "openvino-streams": open_streams,
    "onnxruntime-processes": open_processes,
}
"""Opens an alternative with this number of threads, by name."""
