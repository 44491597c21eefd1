"""Scripts of `benchmarks/` as modules."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a script by its name; the scripts import each other."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module
