"""Builds the compiled CPU executor; everything else is declared in pyproject.toml.

The library has a C interface loaded through ctypes: it needs a C++ compiler but neither Python's headers nor
onnxruntime's, and one file serves every Python. The variable IOSCHED_WHEEL says for which machines (ADR 0038):

    not set                  this one, by its compiler; where none is, the package installs all the same and runs the
                             executor in Python
    manylinux_2_17_x86_64    every Linux of such a processor and glibc 2.17 or newer, by the compiler in the package
    manylinux_2_17_aarch64   `ziglang`, which runs anywhere; an error ends the build
    any                      none: only the executor in Python
"""

import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

VERSION = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
COMPILING = ["-std=c++17", "-O2", "-fvisibility=hidden", "-pthread", f'-DIOSCHED_VERSION="{VERSION}"']
# onnxruntime unloads a provider's library while its sessions, or our threads, may still be there: nodelete keeps it.
LINKING = ["-pthread", "-Wl,--version-script=runtime/cpu/executor.map", "-Wl,-z,nodelete"]
SOURCES = [f"runtime/cpu/{name}.cpp" for name in ("executor", "plan_api", "provider")]
ZIG_TARGETS = {f"manylinux_2_17_{cpu}": f"{cpu}-linux-gnu.2.17" for cpu in ("x86_64", "aarch64")}

wanted = os.environ.get("IOSCHED_WHEEL") or None
if wanted not in (None, "any", *ZIG_TARGETS):
    sys.exit(f"IOSCHED_WHEEL={wanted}: choose one of {', '.join(ZIG_TARGETS)}, any; or leave it unset")


class BuildExecutor(build_ext):
    """Names the library for no Python, compiles its sources in parallel, and has zig make those for other machines."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        if wanted is None:
            linked = copy(ext)
            with ThreadPoolExecutor() as pool:
                linked.sources, linked.extra_objects = [], [*pool.map(self.compiled, ext.sources)]
            super().build_extension(linked)
            return
        path = Path(self.get_ext_fullpath(ext.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        zig = [sys.executable, "-m", "ziglang", "c++", "-target", ZIG_TARGETS[wanted]]
        subprocess.run([*zig, *COMPILING, "-fPIC", "-shared", "-s", *ext.sources, *LINKING, "-o", path], check=True)

    def compiled(self, source: str) -> str:
        """The object file of a source."""
        return self.compiler.compile([source], output_dir=self.build_temp, extra_postargs=COMPILING)[0]


class Wheel(bdist_wheel):
    """A wheel for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", wanted or super().get_tag()[2]


executor = Extension(
    "iosched.runtime.cpu._executor",
    sources=SOURCES,
    depends=["runtime/cpu/executor.map", *map(str, Path("runtime/cpu").glob("**/*.h*"))],
    extra_link_args=LINKING,
    language="c++",
    optional=wanted is None,
)
is_compiled = sys.platform == "linux" if wanted is None else wanted in ZIG_TARGETS
setup(
    cmdclass={"build_ext": BuildExecutor, "bdist_wheel": Wheel},
    ext_modules=[executor] if is_compiled else [],
)
