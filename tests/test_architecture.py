"""How the house is laid out: who may import whom. Imports inside functions count as all others do."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from iosched.cli.main import COMMANDS

TOP = Path(__file__).parents[1]
FOLDERS = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
MODULES = {
    package if path.stem == "__init__" else f"{package}.{path.stem}": path
    for package, folder in FOLDERS.items()
    for path in sorted((TOP / folder).glob("*.py"))
}
FACADE = {"iosched", "iosched.__main__"}

# The rooms of a package; each imports only those before it.
ROOMS = {
    "iosched": ("models", "scheduler", "runtime", "profiler", "jobs", "cli"),
    "iosched.runtime": (
        *("plan", "order", "intervals", "waits", "given", "hazards", "arena", "teams", "placement"),
        *("compare", "memory", "inputs", "quota", "cores", "processor", "handle", "lacking", "faults"),
        *("session", "element_types", "reference", "requests", "shares", "openvino"),
        *("side_by_side", "traced", "cpu", "compiled", "cuda"),
    ),
    "iosched.runtime.cuda": (
        *("target", "layout", "kernel", "builder", "choices", "gpu", "source", "cudnn"),
        *("kernels", "onnxruntime", "lower", "execute", "trials", "backend", "samples"),
    ),
    "iosched.profiler": ("measuring", "store", "peers", "devices"),
}
KINDS_OF_DEVICE = [package for package in FOLDERS if package.rpartition(".")[0] == "iosched.profiler.devices"]
RUNTIMES = [package.replace("profiler.devices", "runtime") for package in KINDS_OF_DEVICE]


@dataclass(frozen=True)
class Import:
    """Module `importer` imports module `target` in line `line`; only for type checkers where `for_types`."""

    importer: str
    target: str
    line: int
    for_types: bool

    def __str__(self) -> str:
        return f"{MODULES[self.importer].relative_to(TOP)}:{self.line} imports {self.target}"


def _imports(importer: str) -> Iterator[Import]:
    tree = ast.parse(MODULES[importer].read_text())
    for_types = {
        inner
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in _targets(node):
                yield Import(importer, target, node.lineno, node in for_types)


def _targets(node: ast.Import | ast.ImportFrom) -> set[str]:
    """The modules of the house that a statement imports; `from package import name` may mean the module `name`."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & MODULES.keys()
    paths = {f"{node.module}.{alias.name}" for alias in node.names}
    return {path if path in MODULES else str(node.module) for path in paths} & MODULES.keys()


@cache
def imports() -> list[Import]:
    """All imports of the house."""
    return [found for module in MODULES for found in _imports(module)]


def _is_in(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def _refuse(wrong: Iterable[Import]) -> None:
    lines = [str(found) for found in wrong]
    assert not lines, "\n".join(["these imports break the rule:", *lines])


def test_modules_form_no_circle() -> None:
    _refuse(_circle([found for found in imports() if not found.for_types]))


def _circle(imports: Sequence[Import]) -> list[Import]:
    """The imports that close a circle, if there is one."""
    graph = {module: {found.target for found in imports if found.importer == module} for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        imported_first = error.args[1]
        steps = {*zip(imported_first[1:], imported_first, strict=False)}
        return [found for found in imports if (found.importer, found.target) in steps]
    return []


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_only_what_stands_before_them(package: str) -> None:
    rooms = [f"{package}.{room}" for room in ROOMS[package]]
    inside = {module for module in MODULES if _is_in(module, [package])}
    assert {module for module in inside if not _is_in(module, rooms)} <= {package, *FACADE}
    _refuse(
        found
        for index, room in enumerate(rooms)
        for found in imports()
        if _is_in(found.importer, [room]) and _is_in(found.target, rooms[index + 1 :])
    )


def test_nobody_imports_the_facade() -> None:
    _refuse(found for found in imports() if found.target in FACADE and found.importer not in FACADE)


def test_commands_are_imported_by_name_alone() -> None:
    """What two commands share has a module of its own; `main` imports a command when it is asked for."""
    commands = {f"iosched.cli.{name}" for name in COMMANDS}
    assert commands <= MODULES.keys()
    _refuse(found for found in imports() if found.target in commands)


def test_jobs_and_commands_are_blind_to_the_kind_of_device() -> None:
    blind = [found for found in imports() if _is_in(found.importer, ["iosched.jobs", "iosched.cli"])]
    _refuse(found for found in blind if _is_in(found.target, [*KINDS_OF_DEVICE, *RUNTIMES]))


def test_one_module_alone_knows_which_kinds_of_device_there_are() -> None:
    others = [found for found in imports() if found.importer != "iosched.profiler.devices.resolve"]
    assert {"iosched.profiler.devices.cpu", "iosched.profiler.devices.cuda"} < {*KINDS_OF_DEVICE}
    for kind in KINDS_OF_DEVICE:
        _refuse(found for found in others if _is_in(found.target, [kind]) and not _is_in(found.importer, [kind]))


def test_attributes_of_nodes_are_read_in_one_module() -> None:
    walks = re.compile(r"\bin (sorted\()?[\w.\[\]]+\.attribute\b(?!\()|get_attribute_value")
    walking = {name for name, path in MODULES.items() if walks.search(path.read_text())}
    assert walking == {"iosched.models.node_attributes"}
