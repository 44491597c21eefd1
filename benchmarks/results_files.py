"""Results files with provenance: written, read and resumed."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from iosched.jobs.provenance import provenance
from iosched.profiler.devices.facts import package_version
from iosched.runtime.inputs import DEFAULT_SEED

RESULTS = Path(__file__).parent / "results"
MEASURING = ("models", "scheduler", "runtime", "profiler", "jobs")
SEEDS: Mapping[str, int] = {"inputs": DEFAULT_SEED}


def known_results(path: Path | None) -> dict[str, Any]:
    """Content of a results file; empty if there is none."""
    found: dict[str, Any] = {} if path is None or not path.exists() else json.loads(path.read_text(encoding="utf-8"))
    return found


def resumed_results(path: Path | None) -> dict[str, Any]:
    """Content of a results file to resume; empty if there is none.

    Ends with an error if the product, the machine or a library differs: all rows of a table share them.
    """
    found = known_results(path)
    if found and (
        differing := [name for name, value in _shared(origin()).items() if _shared(found).get(name) != value]
    ):
        print(f"{path} was measured with another {', '.join(differing)}: write to another file", file=sys.stderr)
        raise SystemExit(2)
    return found


def _shared(content: Mapping[str, Any]) -> dict[str, object]:
    """Common properties of all rows of a file; unknown for a file without provenance."""
    if "provenance" not in content:
        return {}
    whole = content["provenance"]
    libraries = {name: version for name, version in whole["versions"].items() if name not in ("iosched", "commit")}
    machine = whole["machine"]
    return {
        "product": content.get("digest"),
        "machine": (machine["cpu"], machine["design"], len(machine["cores"]), machine["quota"]),
        "library": libraries,
    }


@cache
def product_digest() -> str:
    """SHA-256 of the code that runs and measures models, without comments and docstrings or the command line."""
    found = hashlib.sha256()
    for name in MEASURING:
        folder = Path(str(import_module(f"iosched.{name}").__file__)).parent
        for path in sorted(each for each in folder.rglob("*") if each.suffix in (".py", ".cpp", ".hpp", ".json")):
            found.update(f"{name}/{path.relative_to(folder)}\n".encode() + _code(path))
    return found.hexdigest()


def _code(path: Path) -> bytes:
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree).encode()


def _is_text(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant and isinstance(statement.value.value, str)


@cache
def results(name: str) -> dict[str, Any]:
    """A committed results file by its name without suffix."""
    return known_results(RESULTS / f"{name}.json")


def write_results(options: Namespace, content: Mapping[str, object], **more: Any) -> None:
    """Writes raw results to the path of `-o` by `keep_results`, with its arguments `more`."""
    if options.output is None:
        return
    keep_results(options.output, content, command=options.command, **more)
    print(f"raw results: {options.output}", file=sys.stderr)


def keep_results(
    path: Path,
    content: Mapping[str, object],
    *,
    seeds: Mapping[str, int] = SEEDS,
    command: Sequence[str] | None = None,
    rivals: Sequence[str] = (),
    goes_on: bool = False,
    in_lines: bool = False,
) -> None:
    """Writes results with their provenance; all results files are written here, and atomically.

    Args:
        content: the results. Its keys replace those of `origin`.
        seeds: of random numbers, by their purpose; by default that of random inputs.
        command: the words of the command; those of this process by default.
        rivals: packages whose versions are recorded in addition to the usual ones.
        goes_on: whether the content has results of earlier calls, whose provenance is kept under "earlier".
        in_lines: whether each item of the results has its own line, for files of many rows.
    """
    here = origin(seeds, command, rivals)
    earlier = {"earlier": _earlier(path, here)} if goes_on and path.exists() else {}
    record = {**here, **earlier, **content}
    text = _in_lines(record) if in_lines else json.dumps(record, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def origin(
    seeds: Mapping[str, int] = SEEDS, command: Sequence[str] | None = None, rivals: Sequence[str] = ()
) -> dict[str, object]:
    """Provenance of results of this call: the command, the machine and the versions in short.

    "provenance" has all of it, with the seeds, the commit and the time, as in `--json`.
    """
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]] if command is None else list(command)
    whole = provenance(seeds, words)
    names = ("iosched", "onnxruntime", "onnx", "numpy", *rivals)
    return {
        "command": " ".join(words),
        "machine": {
            "processor": whole.machine.cpu,
            "cores": len(whole.machine.cores),
            "system": f"{whole.machine.system} {whole.machine.architecture}",
            "python": platform.python_version(),
        },
        "versions": {name: version for name in names if (version := package_version(name))},
        "digest": product_digest(),
        "provenance": asdict(whole),
    }


def _earlier(path: Path, here: Mapping[str, object]) -> list[object]:
    """Provenance of earlier calls in the file; equal ones count once."""
    known = json.loads(path.read_text(encoding="utf-8"))
    last = {key: known[key] for key in here if key in known}
    found = [*known.get("earlier", []), *([last] if last else [])]
    calls = [_call(each) for each in (*found, json.loads(json.dumps(here)))]
    return [each for index, each in enumerate(found) if calls[index] not in calls[index + 1 :]]


def _call(where: Mapping[str, Any]) -> object:
    """The distinguishing properties of a script's calls: all but the time."""
    return {**where["provenance"], "time": None} if "provenance" in where else where


def _in_lines(record: Mapping[str, object]) -> str:
    """JSON with a line for each item of a list or an object; those of the first level have several lines."""
    return "{" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in record.items()) + "}"


def _lines(value: object) -> str:
    if isinstance(value, Mapping) and value:
        items = [f"{json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()]
        return "{\n " + ",\n ".join(items) + "}"
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(map(json.dumps, value)) + "]"
    return json.dumps(value)
