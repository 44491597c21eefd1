"""The file of a measured policy: its models, how they run, and the number of cores of a request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from iosched.jobs.loading.loaded_model import read_file
from iosched.jobs.serving.policy import ModelPolicy, ServingPolicy
from iosched.models.errors import InvalidScheduleError, UsageError
from iosched.models.plan_entry import model_sha256
from iosched.runtime.cores import cpu_count
from iosched.runtime.device import DeviceInfo


class Measured(msgspec.Struct, frozen=True):
    """A median with its 95 % interval."""

    value: float
    low: float
    high: float


class PolicyModel(msgspec.Struct, frozen=True):
    """A model.

    Attributes:
        path: relative to the file.
        latency_us: of a request, by the number of cores.
        cores: see `ModelPolicy.cores`.
    """

    path: str
    sha256: str
    rate_per_s: float
    p99_us: float
    latency_us: dict[int, Measured]
    cores: tuple[tuple[float, int], ...]


class PolicyPair(msgspec.Struct, frozen=True):
    """Slowdown of a request of `model` next to those of `other`."""

    model: str
    other: str
    slowdown: Measured


class PolicyMachine(msgspec.Struct, frozen=True):
    """Where it was measured."""

    name: str
    design: dict[str, str]
    cores: int

    @classmethod
    def of(cls, device: DeviceInfo, cores: int) -> PolicyMachine:
        """This many cores of a device."""
        return cls(device.name, dict(device.design), cores)


class PolicyFile(msgspec.Struct, frozen=True):
    """A whole file."""

    machine: PolicyMachine
    models: dict[str, PolicyModel]
    pairs: tuple[PolicyPair, ...]
    version: Literal[1] = 1

    @property
    def policy(self) -> ServingPolicy:
        """Rules for serving the models."""
        return ServingPolicy({name: ModelPolicy(each.cores) for name, each in self.models.items()})

    def paths(self, path: Path) -> Mapping[str, Path]:
        """The models of the file at `path`."""
        return {name: path.parent / each.path for name, each in self.models.items()}

    def to_json(self) -> bytes:
        """The content of the file."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


def relative(path: Path, folder: Path) -> str:
    """The path of a model for a policy file in this folder; raises a UsageError if it is not in it."""
    found = Path(os.path.relpath(path, folder))
    if ".." in found.parts:
        raise UsageError(f"{path} is not in {folder}: write the policy to a folder that has all models in it")
    return found.as_posix()


def hash_of(path: Path) -> str:
    """SHA-256 (hex) of a model, with the external data that iosched writes."""
    return model_sha256(path, path.stat().st_size)


def read_policy(path: Path) -> PolicyFile:
    """Reads a policy file, whose models must be unchanged.

    Raises:
        InvalidScheduleError: it is not a policy file, or a model has changed.
        UsageError: it cannot be read.
    """
    found = read_file(path, _parsed)
    for name, model in found.paths(path).items():
        each = found.models[name]
        if ".." in Path(each.path).parts or Path(each.path).is_absolute():
            raise InvalidScheduleError(f"{path}: the path of model {name!r} leads out of its folder")
        if not (model.is_file() and model.stat().st_size) or hash_of(model) != each.sha256:
            raise InvalidScheduleError(f"{path} is for another {model}: measure again with 'iosched batch --requests'")
    return found


def _parsed(data: bytes) -> PolicyFile:
    try:
        return msgspec.json.decode(data, type=PolicyFile)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidScheduleError(f"this is no policy of 'iosched batch --requests': {error}") from None


def adapted(found: PolicyFile, device: DeviceInfo, threads: int | None) -> tuple[ServingPolicy, str | None]:
    """The policy for these cores; on another machine, the default policy, and a sentence about it."""
    here = PolicyMachine.of(device, threads or cpu_count())
    if found.machine == here:
        return found.policy, None
    made_for = f"{found.machine.cores} cores of {found.machine.name}"
    return ServingPolicy(), f"the policy was measured on {made_for}: requests get cores by the load instead"
