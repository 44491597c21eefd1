"""The architecture: which package may import which. Imports inside functions count like all others."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
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

# The parts of a package; each imports only those before it.
PARTS = {
    "iosched": ("models", "scheduler", "runtime", "profiler", "jobs", "cli"),
    "iosched.runtime": (
        *("plan", "intervals", "waits", "hazards", "arena", "buffer_parts", "placement"),
        *("compare", "cores", "topology", "memory"),
        *("inputs", "processor", "handle", "missing_dependencies", "faults", "session", "reference", "executor"),
        *("divided_sessions", "openvino", "parallel_sessions", "plan_files", "shared_cores", "cpu", "device", "cuda"),
    ),
    "iosched.runtime.cuda": (
        *("kernel", "layout", "builder", "gpu", "source", "cudnn"),
        *("kernels", "onnxruntime", "lower", "execute", "part_timer", "backend", "samples"),
    ),
    "iosched.profiler": ("measuring", "store", "baselines", "devices"),
}
# Packages that may import a library, and libraries that the scheduler may not; all others are free.
LIBRARIES = {
    "click": ("iosched.cli",),
    "rich": ("iosched.cli",),
    "ray": ("iosched.jobs.pool.ray.child", "iosched.jobs.pool.ray.actor"),
}
NOT_IN_THE_SCHEDULER = ("onnx", "onnxruntime", "cupy", "click", "rich")

KINDS_OF_DEVICE = [package for package in FOLDERS if package.rpartition(".")[0] == "iosched.profiler.devices"]
RUNTIMES = [package.replace("profiler.devices", "runtime") for package in KINDS_OF_DEVICE]


@dataclass(frozen=True)
class Import:
    """Module `importer` imports `target` in line `line`; only for type checkers if `for_types`.

    The target is a module of iosched, or a library by the first part of its name.
    """

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
    """The modules and libraries that a statement imports; `from package import name` may mean the module `name`."""
    if isinstance(node, ast.Import):
        paths = {alias.name for alias in node.names}
    else:
        paths = {f"{node.module}.{alias.name}" for alias in node.names}
        paths = {path if path in MODULES else str(node.module) for path in paths}
    return {path if path in MODULES else path.partition(".")[0] for path in paths}


@cache
def imports() -> list[Import]:
    """All imports in iosched."""
    return [found for module in MODULES for found in _imports(module)]


def _is_in(module: str, packages: Iterable[str]) -> bool:
    return any(f"{module}.".startswith(f"{package}.") for package in packages)


def _refuse(wrong: Iterable[Import]) -> None:
    lines = [str(found) for found in wrong]
    assert not lines, "\n".join(["these imports break the rule:", *lines])


@pytest.mark.parametrize("package", FOLDERS)
def test_parts_of_a_package_have_no_import_cycle(package: str) -> None:
    """So they have an order in which each imports only earlier ones, and modules have no cycle either."""
    _refuse(_cycle(package, [found for found in imports() if not found.for_types]))


def _cycle(package: str, imports: Sequence[Import]) -> list[Import]:
    """The imports that form a cycle between modules and folders of a folder, if there is one."""
    between = [
        (importer, target, found)
        for found in imports
        if (importer := _part(package, found.importer)) != (target := _part(package, found.target))
    ]
    graph = defaultdict[str, set[str]](set)
    for importer, target, _ in between:
        graph[importer].add(target)
    try:
        TopologicalSorter({part: parts - {""} for part, parts in graph.items() if part}).prepare()
    except CycleError as error:
        imported_first = error.args[1]
        steps = {*zip(imported_first[1:], imported_first, strict=False)}
        return [found for importer, target, found in between if (importer, target) in steps]
    return []


def _part(package: str, module: str) -> str:
    """The module or folder of a package that a module is or is in; empty for one outside of it."""
    return module.removeprefix(f"{package}.").partition(".")[0] if module.startswith(f"{package}.") else ""


def test_libraries_are_imported_where_they_belong() -> None:
    for library, importers in LIBRARIES.items():
        using = [found for found in imports() if found.target == library]
        assert using, f"nothing imports {library}"
        _refuse(found for found in using if not _is_in(found.importer, importers))


def test_the_scheduler_imports_no_onnx_gpu_or_terminal_library() -> None:
    scheduler = [found for found in imports() if _is_in(found.importer, ["iosched.scheduler"])]
    _refuse(found for found in scheduler if found.target in NOT_IN_THE_SCHEDULER)


@pytest.mark.parametrize(
    ("package", "edges", "closing"),
    [
        ("iosched", [("cli.run", "jobs.run"), ("jobs.run", "models.load")], 0),
        ("iosched", [("cli.run", "jobs.run"), ("jobs.bench", "cli.words")], 2),
        ("iosched.jobs", [("jobs.run", "jobs.rank"), ("jobs.rank", "jobs.run")], 2),
        ("iosched.jobs", [("jobs.pool.a", "jobs.run"), ("jobs.run", "jobs.pool.b")], 2),
        ("iosched.jobs", [("jobs.pool.a", "jobs.pool.b"), ("jobs.pool.b", "jobs.pool.a")], 0),
    ],
)
def test_import_cycles_between_parts_are_found(package: str, edges: list[tuple[str, str]], closing: int) -> None:
    made_up = [Import(f"iosched.{importer}", f"iosched.{target}", 1, for_types=False) for importer, target in edges]
    assert len(_cycle(package, made_up)) == closing


def test_every_form_of_library_import_is_detected() -> None:
    text = "import click.shell_completion\nfrom rich.table import Table\ndef f():\n    import ray as r, onnx"
    found = {
        target
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in _targets(node)
    }
    assert found == {"click", "rich", "ray", "onnx"}


@pytest.mark.parametrize("package", PARTS)
def test_parts_import_only_earlier_parts(package: str) -> None:
    parts = [f"{package}.{part}" for part in PARTS[package]]
    inside = {module for module in MODULES if _is_in(module, [package])}
    assert {module for module in inside if not _is_in(module, parts)} <= {package, *FACADE}
    _refuse(
        found
        for index, part in enumerate(parts)
        for found in imports()
        if _is_in(found.importer, [part]) and _is_in(found.target, parts[index + 1 :])
    )


def test_no_module_imports_the_facade() -> None:
    _refuse(found for found in imports() if found.target in FACADE and found.importer not in FACADE)


def test_no_module_imports_a_command() -> None:
    """Code that two commands share has its own module; `main` imports a command by name on request."""
    commands = {f"iosched.cli.{name}" for name in COMMANDS}
    assert commands <= MODULES.keys()
    _refuse(found for found in imports() if found.target in commands)


def test_jobs_and_commands_import_no_specific_device() -> None:
    users = [found for found in imports() if _is_in(found.importer, ["iosched.jobs", "iosched.cli"])]
    _refuse(found for found in users if _is_in(found.target, [*KINDS_OF_DEVICE, *RUNTIMES]))


def test_only_one_module_imports_the_kinds_of_device() -> None:
    others = [found for found in imports() if found.importer != "iosched.profiler.devices.resolve"]
    assert {"iosched.profiler.devices.cpu", "iosched.profiler.devices.cuda"} < {*KINDS_OF_DEVICE}
    for kind in KINDS_OF_DEVICE:
        _refuse(found for found in others if _is_in(found.target, [kind]) and not _is_in(found.importer, [kind]))


def test_attributes_of_nodes_are_read_in_one_module() -> None:
    walks = re.compile(r"\bin (sorted\()?[\w.\[\]]+\.attribute\b(?!\()|get_attribute_value")
    walking = {name for name, path in MODULES.items() if walks.search(path.read_text())}
    assert walking == {"iosched.models.node_attributes"}
