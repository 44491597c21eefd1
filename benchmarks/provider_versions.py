"""Exported models in onnxruntime's own sessions, in each version of onnxruntime that loads iosched as a provider.

    python benchmarks/provider_versions.py [--versions 1.23.2,1.24.4] [-o benchmarks/results/provider-versions.json]

Builds a wheel and installs it with each onnxruntime into an environment of its own. There each network is exported with
its greedy schedule and opened in four ways, interleaved. The profile of a run tells which provider ran its nodes. The
newest version runs every network of the zoo, the others a few. Then a changed weight and the plan of another version
must make the provider decline. Takes about half an hour, and the network.

Options:
    --room: a folder that keeps the environments for the next call; default: a temporary one.
    --lanes: threads of a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from command_line import read_options
from result_tables import print_table
from results_files import RESULTS, write_results

from iosched.models import zoo

ROOT = Path(__file__).parents[1]
VERSIONS = ("1.23.2", "1.24.4", "1.25.1", "1.26.0", "1.27.0", "1.32.0")
FEW = ("squeezenet", "googlenet", "bert_mini")
DECLINED = "squeezenet"


def main() -> None:
    options = read_options(
        __file__, output=RESULTS / "provider-versions.json", versions=VERSIONS, room=Path, lanes=2, rounds=5
    )
    options.command = ["ROOM" if word == str(options.room) else word for word in options.command]
    with TemporaryDirectory() as temporary:
        room = Path(temporary) if options.room is None else options.room.resolve()
        wheel = built(Path(temporary))
        pythons = {version: environment(room, version, wheel) for version in options.versions}
        found = {version: opened(python, version, Path(temporary), options) for version, python in pythons.items()}
        for version, python in pythons.items():
            others = [each for each in options.versions if each != version]
            found[version]["declined"] = declined(python, version, others[:1], Path(temporary))
            print(version, json.dumps(found[version]["declined"], indent=1), flush=True)
    write_results(options, {"lanes": options.lanes, "versions_tried": found})
    print_table(*table(found))


def table(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Providers that ran the networks, and milliseconds to open SqueezeNet."""
    headers = ["onnxruntime", "networks", "add_provider_for_devices", "providers=[...]", "bits", "error", *WAYS]
    return headers, [_row(version, each["networks"]) for version, each in found.items()]


WAYS = ("onnxruntime", "provider", "iosched.load, plan", "iosched.load, no plan")


def _row(version: str, networks: dict[str, Any]) -> list[str]:
    each = networks.values()
    runs = [" ".join(sorted({" and ".join(one["run_by"][way]) for one in each})) for way in ("devices", "providers")]
    bits = f"{sum(one['equal_to_own'] for one in each)} equal"
    error = f"{max(one['relative_error'] for one in each):.1e}"
    opening = [f"{median(networks[DECLINED]['opening_ms'][way]):.0f}" for way in WAYS]
    return [version, str(len(networks)), *runs, bits, error, *opening]


def built(folder: Path) -> Path:
    """The wheel of this tree."""
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("iosched-*.whl")
    return wheel


def environment(room: Path, version: str, wheel: Path) -> Path:
    """The Python of an environment with that onnxruntime and the wheel."""
    folder = room / f"v{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        run(python, "-m", "pip", "install", "--quiet", f"onnxruntime=={version}", str(wheel))
    run(python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", str(wheel))
    return python


def opened(python: Path, version: str, folder: Path, options: Namespace) -> dict[str, Any]:
    """Every network of a version, each in a process of its own."""
    networks = zoo.names() if version == max(options.versions, key=_numbers) else FEW
    found = {}
    for network in networks:
        place = folder / version / network
        words = (network, str(place), str(options.lanes), str(options.rounds))
        found[network] = child(python, "open", *words)
        print(version, network, found[network]["run_by"], found[network]["equal_to_own"], flush=True)
        if network != DECLINED:
            for each in place.glob("*"):
                each.unlink()
    return {"networks": found, "loop": child(python, "loop", str(folder / version / "loop"))}


def _numbers(version: str) -> list[int]:
    return [int(each) for each in version.split(".")]


def declined(python: Path, version: str, others: Sequence[str], folder: Path) -> dict[str, Any]:
    """Models whose plans do not match, by the reason."""
    cases = {"a changed weight": folder / version / DECLINED}
    cases |= {f"a plan of {other}": folder / other / DECLINED for other in others}
    return {name: child(python, "declined", str(place), str(int("weight" in name))) for name, place in cases.items()}


def child(python: Path, *words: str) -> dict[str, Any]:
    """The answer of `provider_opening.py` in an environment."""
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [python, str(Path(__file__).with_name("provider_opening.py")), *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def run(*words: str | Path) -> None:
    """A command that must succeed."""
    subprocess.run(words, check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
