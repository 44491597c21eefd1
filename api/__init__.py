"""Runs operators of ONNX models in parallel with each other, by schedules that are found by measurement.

The names below are the public Python API. Each is imported when it is first used, so that `import iosched` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iosched.jobs.annotate import annotated as annotated
    from iosched.jobs.batch import BatchResult as BatchResult
    from iosched.jobs.batch import BatchSettings as BatchSettings
    from iosched.jobs.batch import batch as batch
    from iosched.jobs.bench import BenchResult as BenchResult
    from iosched.jobs.bench import bench as bench
    from iosched.jobs.explore import ExploreResult as ExploreResult
    from iosched.jobs.explore import ExploreSettings as ExploreSettings
    from iosched.jobs.explore import explore as explore
    from iosched.jobs.export import ExportResult as ExportResult
    from iosched.jobs.export import export as export
    from iosched.jobs.loading.batches import LoadedBatches as LoadedBatches
    from iosched.jobs.loading.batches import load_any as load_any
    from iosched.jobs.loading.batches import load_batches as load_batches
    from iosched.jobs.loading.inference_session import InferenceSession as InferenceSession
    from iosched.jobs.loading.loaded_model import LoadedModel as LoadedModel
    from iosched.jobs.loading.loaded_model import load as load
    from iosched.jobs.matrix import MatrixResult as MatrixResult
    from iosched.jobs.matrix import MatrixSettings as MatrixSettings
    from iosched.jobs.matrix import matrix as matrix
    from iosched.jobs.optimize import OptimizeResult as OptimizeResult
    from iosched.jobs.optimize import OptimizeSettings as OptimizeSettings
    from iosched.jobs.optimize_batches import BatchesResult as BatchesResult
    from iosched.jobs.python_api import optimize as optimize
    from iosched.jobs.python_api import optimize_batches as optimize_batches
    from iosched.jobs.rank import RankResult as RankResult
    from iosched.jobs.rank import RankSettings as RankSettings
    from iosched.jobs.rank import rank as rank
    from iosched.jobs.run import RunResult as RunResult
    from iosched.jobs.run import open_executor as open_executor
    from iosched.jobs.run import run as run
    from iosched.jobs.serving.policy import ModelPolicy as ModelPolicy
    from iosched.jobs.serving.policy import ServingPolicy as ServingPolicy
    from iosched.jobs.serving.served_models import ServedModels as ServedModels
    from iosched.jobs.serving.served_models import serve_together as serve_together
    from iosched.models.errors import BusyError as BusyError
    from iosched.models.errors import DeviceError as DeviceError
    from iosched.models.errors import ExecutionError as ExecutionError
    from iosched.models.errors import InvalidModelError as InvalidModelError
    from iosched.models.errors import InvalidScheduleError as InvalidScheduleError
    from iosched.models.errors import IoschedError as IoschedError
    from iosched.models.errors import MismatchError as MismatchError
    from iosched.models.errors import OtherDeviceWarning as OtherDeviceWarning
    from iosched.models.errors import PlanWarning as PlanWarning
    from iosched.models.errors import UsageError as UsageError
    from iosched.models.export import write_model as write_model
    from iosched.models.graph import ComputationGraph as ComputationGraph
    from iosched.models.graph import DynamicBatchSpec as DynamicBatchSpec
    from iosched.models.graph import Operator as Operator
    from iosched.models.graph import TensorSpec as TensorSpec
    from iosched.models.load import load_model as load_model
    from iosched.models.model import Model as Model
    from iosched.models.mutation.edit import Edit as Edit
    from iosched.models.mutation.edit import Question as Question
    from iosched.models.mutation.graph_view import GraphView as GraphView
    from iosched.models.mutation.graph_view import Node as Node
    from iosched.models.mutation.mutator import InputMutator as InputMutator
    from iosched.models.mutation.mutator import InsertingMutator as InsertingMutator
    from iosched.models.mutation.mutator import Layer as Layer
    from iosched.models.mutation.mutator import Mutator as Mutator
    from iosched.models.mutation.mutator import OperatorMutator as OperatorMutator
    from iosched.models.mutation.mutator import Targets as Targets
    from iosched.models.mutation.mutator import by_name as by_name
    from iosched.models.mutation.mutator import by_type as by_type
    from iosched.models.mutation.mutator import chain as chain
    from iosched.models.mutation.mutator import layer_of as layer_of
    from iosched.models.mutation.record import record_of as record_of
    from iosched.models.mutation.variant import Variant as Variant
    from iosched.models.mutation.variant import replay as replay
    from iosched.models.mutation.variant import variant_of as variant_of
    from iosched.models.spaces.space import Space as Space
    from iosched.models.spaces.space import find_space as find_space
    from iosched.runtime.cpu.library import include_path as include_path
    from iosched.runtime.cpu.provider import plugin_path as plugin_path
    from iosched.scheduler.batch_schedules import BatchSchedules as BatchSchedules
    from iosched.scheduler.blocks import partition as partition
    from iosched.scheduler.cost import AdditiveGroups as AdditiveGroups
    from iosched.scheduler.cost import CostModel as CostModel
    from iosched.scheduler.cost import Curtailable as Curtailable
    from iosched.scheduler.cost import OperatorBounds as OperatorBounds
    from iosched.scheduler.cost import OperatorKeys as OperatorKeys
    from iosched.scheduler.cost import Remeasurable as Remeasurable
    from iosched.scheduler.counts import count_blocks as count_blocks
    from iosched.scheduler.document import ScheduleDocument as ScheduleDocument
    from iosched.scheduler.effort import Effort as Effort
    from iosched.scheduler.pruning import Pruning as Pruning
    from iosched.scheduler.schedule import Block as Block
    from iosched.scheduler.schedule import Schedule as Schedule
    from iosched.scheduler.schedule import Stage as Stage
    from iosched.scheduler.schedule import Strategy as Strategy
    from iosched.scheduler.search import SearchResult as SearchResult
    from iosched.scheduler.search import search as search
    from iosched.scheduler.unit_graph import UnitGraph as UnitGraph
    from iosched.scheduler.unit_graph import join_units as join_units

    __version__: str

_HOME = {
    "AdditiveGroups": "iosched.scheduler.cost",
    "BatchResult": "iosched.jobs.batch",
    "BatchSchedules": "iosched.scheduler.batch_schedules",
    "BatchSettings": "iosched.jobs.batch",
    "BatchesResult": "iosched.jobs.optimize_batches",
    "BenchResult": "iosched.jobs.bench",
    "Block": "iosched.scheduler.schedule",
    "BusyError": "iosched.models.errors",
    "ComputationGraph": "iosched.models.graph",
    "CostModel": "iosched.scheduler.cost",
    "Curtailable": "iosched.scheduler.cost",
    "DeviceError": "iosched.models.errors",
    "DynamicBatchSpec": "iosched.models.graph",
    "Edit": "iosched.models.mutation.edit",
    "Effort": "iosched.scheduler.effort",
    "ExecutionError": "iosched.models.errors",
    "ExploreResult": "iosched.jobs.explore",
    "ExploreSettings": "iosched.jobs.explore",
    "ExportResult": "iosched.jobs.export",
    "GraphView": "iosched.models.mutation.graph_view",
    "InferenceSession": "iosched.jobs.loading.inference_session",
    "InputMutator": "iosched.models.mutation.mutator",
    "InsertingMutator": "iosched.models.mutation.mutator",
    "InvalidModelError": "iosched.models.errors",
    "InvalidScheduleError": "iosched.models.errors",
    "IoschedError": "iosched.models.errors",
    "Layer": "iosched.models.mutation.mutator",
    "LoadedBatches": "iosched.jobs.loading.batches",
    "LoadedModel": "iosched.jobs.loading.loaded_model",
    "MatrixResult": "iosched.jobs.matrix",
    "MatrixSettings": "iosched.jobs.matrix",
    "MismatchError": "iosched.models.errors",
    "Model": "iosched.models.model",
    "ModelPolicy": "iosched.jobs.serving.policy",
    "Mutator": "iosched.models.mutation.mutator",
    "Node": "iosched.models.mutation.graph_view",
    "Operator": "iosched.models.graph",
    "OperatorBounds": "iosched.scheduler.cost",
    "OperatorKeys": "iosched.scheduler.cost",
    "OperatorMutator": "iosched.models.mutation.mutator",
    "OptimizeResult": "iosched.jobs.optimize",
    "OptimizeSettings": "iosched.jobs.optimize",
    "OtherDeviceWarning": "iosched.models.errors",
    "PlanWarning": "iosched.models.errors",
    "Pruning": "iosched.scheduler.pruning",
    "Question": "iosched.models.mutation.edit",
    "RankResult": "iosched.jobs.rank",
    "RankSettings": "iosched.jobs.rank",
    "Remeasurable": "iosched.scheduler.cost",
    "RunResult": "iosched.jobs.run",
    "Schedule": "iosched.scheduler.schedule",
    "ScheduleDocument": "iosched.scheduler.document",
    "SearchResult": "iosched.scheduler.search",
    "ServedModels": "iosched.jobs.serving.served_models",
    "ServingPolicy": "iosched.jobs.serving.policy",
    "Space": "iosched.models.spaces.space",
    "Stage": "iosched.scheduler.schedule",
    "Strategy": "iosched.scheduler.schedule",
    "Targets": "iosched.models.mutation.mutator",
    "TensorSpec": "iosched.models.graph",
    "UnitGraph": "iosched.scheduler.unit_graph",
    "UsageError": "iosched.models.errors",
    "Variant": "iosched.models.mutation.variant",
    "annotated": "iosched.jobs.annotate",
    "batch": "iosched.jobs.batch",
    "bench": "iosched.jobs.bench",
    "by_name": "iosched.models.mutation.mutator",
    "by_type": "iosched.models.mutation.mutator",
    "chain": "iosched.models.mutation.mutator",
    "count_blocks": "iosched.scheduler.counts",
    "explore": "iosched.jobs.explore",
    "export": "iosched.jobs.export",
    "find_space": "iosched.models.spaces.space",
    "include_path": "iosched.runtime.cpu.library",
    "join_units": "iosched.scheduler.unit_graph",
    "layer_of": "iosched.models.mutation.mutator",
    "load": "iosched.jobs.loading.loaded_model",
    "load_any": "iosched.jobs.loading.batches",
    "load_batches": "iosched.jobs.loading.batches",
    "load_model": "iosched.models.load",
    "matrix": "iosched.jobs.matrix",
    "open_executor": "iosched.jobs.run",
    "optimize": "iosched.jobs.python_api",
    "optimize_batches": "iosched.jobs.python_api",
    "partition": "iosched.scheduler.blocks",
    "plugin_path": "iosched.runtime.cpu.provider",
    "rank": "iosched.jobs.rank",
    "record_of": "iosched.models.mutation.record",
    "replay": "iosched.models.mutation.variant",
    "run": "iosched.jobs.run",
    "search": "iosched.scheduler.search",
    "serve_together": "iosched.jobs.serving.served_models",
    "variant_of": "iosched.models.mutation.variant",
    "write_model": "iosched.models.export",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used.

    Raises:
        AttributeError: there is no such public name.
    """
    if name == "__version__":
        from iosched.models.version import iosched_version

        return iosched_version()
    if name not in _HOME:
        raise AttributeError(f"module 'iosched' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names, for completion in an interactive Python."""
    return sorted(__all__)
