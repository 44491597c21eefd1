"""Classes that several threads use at once."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc, sys, threading, types
import msgspec
from iosched.models.prepared import prepare
gc.set_threshold(50, 2, 2)
sys.setswitchinterval(1e-6)
for number in range(100):
    module = types.ModuleType(f"m{number}")
    sys.modules[module.__name__] = module
    text = "from __future__ import annotations\\nfrom dataclasses import dataclass\\n"
    plain = None
    for depth in range(8):
        text += f"@dataclass(frozen=True)\\nclass Kind{depth}:\\n  x: tuple[int, ...]\\n  y: dict[str, float] | None\\n"
        text += f"  z: Kind{depth - 1}\\n" if depth else "  z: None = None\\n"
        plain = {"x": [1], "y": {"a": 1.0}, "z": plain}
    exec(text, module.__dict__)
    both = threading.Barrier(2)
    def meet():
        both.wait()
        prepare(module.Kind7)
        msgspec.convert(plain, module.Kind7)
    threads = [threading.Thread(target=meet) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_classes_are_prepared_by_one_thread_at_a_time() -> None:
    """Without it, the process ends with signal 11."""
    assert subprocess.run([sys.executable, "-c", _PROGRAM]).returncode == 0
