"""The bundled and light networks, built once for all tests and runs of this version: weights are mapped, not copied."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from iosched.models import zoo
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo import light, nasnet_a
from iosched.models.zoo.light import light_model

CACHE = Path(__file__).parents[2] / ".pytest_cache" / "d"


def cached_folder(room: Path, version: str, name: str, fill: Callable[[Path], None]) -> Path:
    """Folder `name` of a room of pytest's cache, filled once for all tests and runs; other versions are dropped."""
    folder = room / version
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of the other workers of this test run
        if not (folder / name).exists():
            for other in room.iterdir():
                if other != folder:
                    shutil.rmtree(other, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=folder) as unfinished:
                made = Path(unfinished, name)
                made.mkdir()
                fill(made)
                made.rename(folder / name)
    return folder / name


@cache
def zoo_model(name: str, batch_size: int = 1) -> Model:
    """A network that `zoo_file` names, as `load_model` reads it from a file with external data."""
    return load_model(zoo_file(name), name=name, batch_size=batch_size)


def zoo_file(name: str) -> Path:
    """Network `name` of the zoo, `light_NAME`, or `short_nasnet_a`, as a file with external weights.

    The short one has two cells in a row where NASNet-A has six, so that every kind of cell is there.
    """

    def fill(folder: Path) -> None:
        onnx.save(_built(name), folder / "model.onnx", save_as_external_data=True, location="weights.bin")

    return cached_folder(CACHE / "zoo", _version(), name, fill) / "model.onnx"


def _built(name: str) -> onnx.ModelProto:
    if name == "short_nasnet_a":
        return nasnet_a.build(cells_per_stage=2)
    return light_model(name) if name.startswith("light_") else zoo.build(name)


@cache
def _version() -> str:
    """A digest of everything that determines the bits of a network."""
    digest = hashlib.sha256(f"{onnx.__version__} {np.__version__}".encode())
    for source in [Path(light.__file__), *sorted(Path(zoo.__file__).parent.glob("*.py"))]:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
