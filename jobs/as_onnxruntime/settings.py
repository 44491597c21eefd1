"""What the settings of an onnxruntime session mean for a model that runs by a schedule."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iosched.models.errors import UsageError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
_KNOWN = (CPU, CUDA)

Provider = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Asked:
    """What `LoadedModel` takes of a session's settings.

    Attributes:
        device: as `--device` takes it.
        threads: the number of CPU cores; None for all that the process may use.
    """

    device: str
    threads: int | None


def asked(
    options: Any, providers: Sequence[Provider] | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> Asked:
    """Reads the settings of a session.

    Raises:
        UsageError: one of them asks for what does not go together with a schedule; the text says what to do.
    """
    return Asked(_device(providers, provider_options), _threads(options))


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
    """The device that the providers allow: a GPU only where CUDA is among them, by the number in its options."""
    if not providers:
        return "auto"
    if provider_options is not None and len(provider_options) != len(providers):
        raise UsageError("'providers' and 'provider_options' must have the same length if both are given")
    beside = provider_options or [{}] * len(providers)
    named = {name: {**given, **more} for (name, given), more in zip(map(_pair, providers), beside, strict=True)}
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
