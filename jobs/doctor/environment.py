"""Variables of the environment that change what iosched or the libraries below it do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from iosched.jobs.doctor.section import Asked, Section
from iosched.profiler.devices.finding import Finding

_OWN = "IOSCHED_"
_SHOWN = (
    *("IOSCHED_PROFILE_DB", "IOSCHED_SHARE_CORES", "IOSCHED_DEVICE", "IOSCHED_THREADS"),
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME"),
    *("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX", "LD_PRELOAD", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONMALLOC", "XDG_CACHE_HOME", "TMPDIR", "LANG", "LC_ALL", "NO_COLOR"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_PATH", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
)
"""Those whose values are shown: numbers, words and paths."""

_HIDDEN = ("RAY_ADDRESS",)
_SET = "set, not shown"


def look(asked: Asked) -> Section:
    """Those that are set; of any that may name a host or hold a secret, only that it is."""
    del asked
    found = _of(os.environ)
    values = {name: value for name, value in found.items() if value != _SET}
    hidden = [name for name, value in found.items() if value == _SET]
    rows = tuple((name, value or "set, empty") for name, value in found.items())
    return Section(
        {"shown": values, "hidden": hidden},
        rows or (("variables", "none that matter is set"),),
        tuple(_findings(os.environ)),
    )


def _of(environ: Mapping[str, str]) -> dict[str, str]:
    shown = {name: environ[name] for name in _SHOWN if name in environ}
    others = sorted(name for name in environ if name.startswith(_OWN) and name not in _SHOWN)
    return {**shown, **{name: _SET for name in (*others, *_HIDDEN) if name in environ}}


def _findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    if environ.get("LD_PRELOAD"):
        what = "a library is loaded before all others, and may change what is measured"
        yield Finding(what, "LD_PRELOAD", "unset it to compare", is_broken=False)
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        yield Finding("it hides all GPUs", "CUDA_VISIBLE_DEVICES", "unset it to use one", is_broken=False)
    if "IOSCHED_SHARE_CORES" in environ:
        what = "processes of iosched take the same cores, and slow each other down where several run"
        yield Finding(what, "IOSCHED_SHARE_CORES", "unset it where several run at a time", is_broken=False)
