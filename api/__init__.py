"""Runs operators of ONNX models in parallel with each other, by schedules found by measurement.

The names below are the public Python API. They are imported on first use, so that `import iosched` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iosched.models.errors import IoschedError as IoschedError
    from iosched.models.load import load_model as load_model
    from iosched.models.model import Model as Model
    from iosched.profiler.annotation import annotated as annotated
    from iosched.profiler.optimize import OptimizeResult as OptimizeResult
    from iosched.profiler.optimize import OptimizeSettings as OptimizeSettings
    from iosched.profiler.optimize import optimize as optimize
    from iosched.profiler.run import open_executor as open_executor
    from iosched.scheduler.document import ScheduleDocument as ScheduleDocument

    __version__: str

_HOME = {
    "IoschedError": "iosched.models.errors",
    "Model": "iosched.models.model",
    "OptimizeResult": "iosched.profiler.optimize",
    "OptimizeSettings": "iosched.profiler.optimize",
    "ScheduleDocument": "iosched.scheduler.document",
    "annotated": "iosched.profiler.annotation",
    "load_model": "iosched.models.load",
    "open_executor": "iosched.profiler.run",
    "optimize": "iosched.profiler.optimize",
}

__all__ = [
    "IoschedError",
    "Model",
    "OptimizeResult",
    "OptimizeSettings",
    "ScheduleDocument",
    "__version__",
    "annotated",
    "load_model",
    "open_executor",
    "optimize",
]


def __getattr__(name: str) -> object:
    """Imports a public name when it is first asked for."""
    if name == "__version__":
        from importlib.metadata import version

        return version("iosched")
    if name not in _HOME:
        raise AttributeError(f"module 'iosched' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted(__all__)
