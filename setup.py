"""Builds the compiled CPU executor; everything else is declared in pyproject.toml.

The library has a C interface loaded through ctypes: it needs a C++ compiler but neither Python's headers nor
onnxruntime's. Where no compiler is, the package installs all the same and runs the pure-Python executor.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "iosched.runtime.cpu._executor",
            sources=["runtime/cpu/executor.cpp"],
            depends=[
                f"runtime/cpu/{name}.hpp" for name in ("kernel", "onnxruntime_api", "onnxruntime_session", "threads")
            ],
            extra_compile_args=["-std=c++17", "-O2", "-fvisibility=hidden", "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ]
)
