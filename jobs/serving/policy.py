"""The cores of a request, and the order of requests: plain data that can be stored in a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from iosched.models.errors import UsageError

DEFAULT_WAITING = 64


@dataclass(frozen=True)
class ModelPolicy:
    """Rules for serving the requests of one model.

    Attributes:
        cores: steps (load, cores) in ascending order of load: up to this load, a request gets at most these cores;
            above the last one, it gets one. Empty: the default rule, see `most_cores`.
        priority: each step counts as `ServingPolicy.priority_s` of waiting.
        most_waiting: requests that may wait; further ones are refused.
    """

    cores: tuple[tuple[float, int], ...] = ()
    priority: int = 0
    most_waiting: int = DEFAULT_WAITING

    def __post_init__(self) -> None:
        loads = [load for load, _ in self.cores]
        if loads != sorted(set(loads)) or any(count < 1 for _, count in self.cores):
            raise UsageError("cores by load must be (load, cores) in ascending order of load, with at least one core")
        if self.most_waiting < 0:
            raise UsageError("the number of waiting requests must be at least 0")

    def most_cores(self, load: float, cores: int) -> int:
        """The number of cores that a request may get.

        By default they are divided among the request and the others that are expected to run concurrently.

        Args:
            load: core seconds that all models' requests need per second, divided by the cores. 1.0 is the capacity.
            cores: the number of cores of the process.
        """
        if not self.cores:
            return math.ceil(cores / (1 + load * cores))
        return min(cores, next((count for most, count in self.cores if load <= most), 1))

    def sizes(self, cores: int) -> tuple[int, ...]:
        """The numbers of cores that a plan is prepared for, the largest first; 1 is always among them."""
        if self.cores:
            return tuple(sorted({1, *(min(count, cores) for _, count in self.cores)}, reverse=True))
        step, found = 2 if cores <= 4 else 4, [cores]  # each size costs time and memory
        while found[-1] > 1:
            found.append(max(1, found[-1] // step))
        return tuple(found)


@dataclass(frozen=True)
class ServingPolicy:
    """Rules for serving the requests of several models.

    Requests start in the order of: arrival - priority * `priority_s` + expected run time on one core * `length_weight`.
    So short requests overtake long ones, but every request eventually becomes the first.

    Attributes:
        models: by name; `ModelPolicy()` applies to others.
        priority_s: seconds of waiting that one step of priority equals.
        length_weight: seconds of waiting that a second of run time costs; 0: no effect of run time.
        overlap_ratio: if no core is free, one request may share the cores of running ones if each of them still needs
            at least this many times its run time; None: never.
        load_s: seconds over which the load is averaged.
    """

    models: Mapping[str, ModelPolicy] = field(default_factory=dict)
    priority_s: float = 0.1
    length_weight: float = 4.0
    overlap_ratio: float | None = 3.0
    load_s: float = 2.0

    def of(self, name: str) -> ModelPolicy:
        """The policy of a model."""
        return self.models.get(name, _DEFAULT)


_DEFAULT = ModelPolicy()
