"""Plans that fail: lowering raises what it should never raise, for the stages that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from iosched.models.errors import ExecutionError, InvalidModelError
from iosched.runtime.cpu import backend as cpu_backend
from iosched.runtime.hazards import HazardError

Plan = Sequence[Sequence[Sequence[str]]]
"""The stages of a plan, each of groups, by the names of the nodes in onnxruntime's graph."""

FAULTS = (HazardError("tasks clash"), ExecutionError("a kernel fails"), KeyError(""), InvalidModelError("no kernel"))
"""What is contained: a plan that does not pass its check, a kernel, a bug, and a derived graph that is refused."""


def fail_where(monkeypatch: pytest.MonkeyPatch, is_meant: Callable[[Plan], bool], error: BaseException) -> None:
    """From now on lowering raises `error` for the plans that are meant: of stages alone, and of whole models."""
    lower = cpu_backend.lower

    def failing(kernels: Any, placement: Any, stages: Any, *others: Any, **settings: Any) -> Any:
        if is_meant([[[kernels.nodes[index].name for index in group] for group in groups] for groups in stages]):
            raise error
        return lower(kernels, placement, stages, *others, **settings)

    monkeypatch.setattr(cpu_backend, "lower", failing)


def is_side_by_side(plan: Plan) -> bool:
    """Whether groups run side by side."""
    return any(len(groups) > 1 for groups in plan)


def has(*operators: str) -> Callable[[Plan], bool]:
    """Whether all operators of these names are in the plan."""

    def is_meant(plan: Plan) -> bool:
        names = [name for groups in plan for group in groups for name in group]
        return all(any(name == each or name.startswith(f"{each}_") for name in names) for each in operators)

    return is_meant


is_whole = has("fs", "gs")
"""Whether it is a plan of the whole of `scripted.fire`, of which these are far apart."""
