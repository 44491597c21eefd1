"""A `libcuda.so.1` that tells of GPUs that are not there: what the driver's library would answer, compiled from C.

What it tells is in the environment: STANDIN_CUDA ("12040"), STANDIN_GPUS ("Tesla V100-SXM2-16GB:70,NVIDIA L4:89"), and
STANDIN_STATUS, with which it refuses to start.
"""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from iosched.runtime.cuda.gpu import extras

_SOURCE = r"""
#include <stdlib.h>
#include <string.h>
static const char *told(const char *name) { const char *found = getenv(name); return found ? found : ""; }
static const char *gpu(int index) {
  const char *at = told("STANDIN_GPUS");
  while (index-- && at) { at = strchr(at, ','); at += at != 0; }
  return at;
}
extern "C" {
int cuDriverGetVersion(int *version) { *version = atoi(told("STANDIN_CUDA")); return 0; }
int cuInit(unsigned flags) { return flags ? 1 : atoi(told("STANDIN_STATUS")); }
int cuDeviceGetCount(int *count) {
  const char *at = told("STANDIN_GPUS");
  for (*count = *at != 0; *at; ++at) *count += *at == ',';
  return 0;
}
int cuDeviceGet(int *device, int index) { *device = 100 + index; return 0; }
int cuDeviceGetName(char *name, int length, int device) {
  const char *at = gpu(device - 100);
  const int size = strchr(at, ':') - at;
  if (size >= length) return 1;
  memcpy(name, at, size);
  name[size] = 0;
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  const int capability = atoi(strchr(gpu(device - 100), ':') + 1);
  *value = attribute == 75 ? capability / 10 : capability % 10;
  return attribute == 75 || attribute == 76 ? 0 : 1;
}
int cuGetErrorString(int status, const char **text) {
  *text = status == 803 ? "system has unsupported display driver / cuda driver combination" : 0;
  return *text ? 0 : 1;
}
}
"""


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="iosched-driver-")


@cache
def compiled(source: str = _SOURCE) -> Path:
    """The library."""
    path = Path(_folder().name) / f"{abs(hash(source))}" / "libcuda.so.1"
    path.parent.mkdir()
    command = ["g++", "-shared", "-fPIC", "-w", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def install(monkeypatch: pytest.MonkeyPatch, *gpus: str, cuda: int = 13000, status: int = 0) -> None:
    """Makes it the library of this machine's driver.

    Args:
        gpus: as "NAME:CAPABILITY".
        cuda: newest CUDA that the driver supports.
        status: with which it refuses to start.
    """
    monkeypatch.setattr(extras, "LIBRARY", str(compiled()))
    monkeypatch.setenv("STANDIN_CUDA", str(cuda))
    monkeypatch.setenv("STANDIN_GPUS", ",".join(gpus))
    monkeypatch.setenv("STANDIN_STATUS", str(status))


def none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this a machine without a driver."""
    monkeypatch.setattr(extras, "LIBRARY", "libcuda-of-no-machine.so.1")
