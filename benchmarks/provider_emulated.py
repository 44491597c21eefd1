"""EMULATED: `provider_versions.py` on an emulated processor; times mean nothing.

    python benchmarks/provider_emulated.py PYTHON [-o benchmarks/results/provider-aarch64.json]

PYTHON is an executable that runs the Python of that processor, with the wheel and onnxruntime installed; for aarch64:

    qemu-aarch64-static -cpu cortex-a76 -L ROOT ROOT/usr/bin/python3.11

ROOT has Debian's packages of that processor, and as `ROOT/proc/cpuinfo` the text that its kernel would show: with the
host's, onnxruntime ends with a segmentation fault. Measures nothing.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from command_line import read_options
from provider_versions import DECLINED, child
from results_files import RESULTS, write_results


def main() -> None:
    options = read_options(__file__, None, {"python": Path}, output=RESULTS / "provider-aarch64.json", lanes=2)
    options.command = [word if word != str(options.python) else "PYTHON" for word in options.command]
    with TemporaryDirectory() as folder:
        place = str(Path(folder, DECLINED))
        network = child(options.python, "open", DECLINED, place, str(options.lanes), "1")
        del network["opening_ms"]
        found = {
            "about": child(options.python, "about"),
            "networks": {DECLINED: network},
            "loop": child(options.python, "loop", str(Path(folder, "loop"))),
            "declined": {"a changed weight": child(options.python, "declined", place, "1")},
        }
    write_results(options, {"emulated": True, **found})


if __name__ == "__main__":
    main()
