"""What a report of a failure says of an attached GPU: its compute capability, its driver and the libraries."""

from __future__ import annotations

from pathlib import Path

from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.facts import installed

_MODULE = Path("/sys/module/nvidia/version")
_PACKAGES = ("nvidia-cudnn-frontend",)


def about(gpu: AttachedGpu) -> dict[str, str]:
    """Versions as people write them, by short names; `cuda_driver` is the newest CUDA that the driver supports."""
    found = dict(gpu.versions)
    named = {"cuda_driver": "driver", "cuda": "cuda"}
    versions = {name: _cuda(found.pop(key)) for name, key in named.items() if key in found}
    if "cudnn" in found:
        found["cudnn"] = _cudnn(found["cudnn"])
    capability = "{}.{}".format(*divmod(gpu.driver.gpu.capability, 10))
    return {"capability": capability, **_driver(), **versions, **found, **installed(_PACKAGES)}


def _driver() -> dict[str, str]:
    """The version of NVIDIA's driver; nothing where its module does not tell."""
    try:
        return {"driver": _MODULE.read_text().strip()}
    except OSError:
        return {}


def _cuda(number: str) -> str:
    """CUDA numbers 13.0 as 13000."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


def _cudnn(number: str) -> str:
    """cuDNN 9 numbers 9.19.0 as 91900."""
    return f"{int(number) // 10_000}.{int(number) // 100 % 100}.{int(number) % 100}"
