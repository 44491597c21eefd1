"""Puts CuPy on `DeskCuda`: its streams, events, graphs, memory pool, NVRTC and packing of arguments are CuPy's own.

CuPy's modules call each other through tables of C functions (`__pyx_capi__`). Those of CUDA's runtime and driver are
replaced by functions that call the desk; it has to happen before CuPy is imported.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from desk_cuda import CudaStatusError, DeskCuda

_ERRORS = {
    "cupy_backends.cuda.api.runtime": "CUDARuntimeError",
    "cupy_backends.cuda.api.driver": "CUDADriverError",
}
_FORMATS = {
    "int": ("i", "int"),
    "CUdevice": ("i", "int"),
    "unsigned int": ("I", "unsigned int"),
    "size_t": ("n", "size_t"),
    "intptr_t": ("L", "long long"),
    "PyObject *": ("O", "PyObject *"),
}
_RESULTS = {
    "int": ("PyLong_AsLong(found)", "-1"),
    "unsigned int": ("PyLong_AsUnsignedLong(found)", "0"),
    "size_t": ("PyLong_AsSize_t(found)", "-1"),
    "intptr_t": ("PyLong_AsLongLong(found)", "0"),
    "float": ("PyFloat_AsDouble(found)", "0"),
}
_LIBCUDA = Path(__file__).parents[2] / "benchmarks" / "devices" / "standin_driver.c"
"""The driver's library: names of errors, and what cuDNN asks of it when it builds plans without a GPU."""

_kept: list[Any] = []


def is_installed() -> bool:
    """Whether CuPy is on the desk in this process."""
    return bool(_kept)


def missing() -> str | None:
    """Why the desk cannot be set up here; None where it can."""
    if shutil.which("g++") is None:
        return "no g++ to compile for the host"
    if find_spec("cupy") is None:
        return "CuPy is not installed"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "no Python.h"
    if "cupy" in sys.modules and not _kept:
        return "CuPy was imported before the desk was set up"
    if not _kept and _gpus():
        return "a GPU is attached: tests/gpu try the same on it"
    return None


def _gpus() -> int:
    """The number of real GPUs."""
    runtime = importlib.import_module("cupy_backends.cuda.api.runtime")
    try:
        found: int = runtime.getDeviceCount()
    except RuntimeError:
        return 0
    return found


def install() -> DeskCuda:
    """The desk, under CuPy from now on; the same one each time."""
    if not _kept:
        assert missing() is None
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"  # or sources that were compiled before are not seen
        libcuda = _compiled(_LIBCUDA.read_text() + _GRAPHS, "-Wl,-soname,libcuda.so.1")  # found by its name from now on
        runtime, driver = (importlib.import_module(name) for name in _ERRORS)
        desk = DeskCuda()
        _kept.extend((desk, libcuda, *_answer_about_graphs(libcuda, desk)))
        for module in (runtime, driver):
            _replace(module, desk, getattr(module, _ERRORS[module.__name__]))
        desk.count = 2  # for which CuPy makes room in its pool of memory, and this thread's streams
        importlib.import_module("cupy").cuda.alloc(1)
        desk.count = 0
        compiler = importlib.import_module("cupy.cuda.compiler")
        program = compiler._NVRTCProgram
        program.compile = _remembering(program.compile, desk)
    found: DeskCuda = _kept[0]
    return found


_GRAPHS = """
static int (*nodes_of)(void *, void **, size_t *);
static int (*info_of)(void *, int *, void **, void **, size_t *);
static int (*add_empty)(void **, void *, void **, size_t);
static int (*set_before)(void *, void **);
void desk_graphs(void *nodes, void *info, void *add, void *set) {
    nodes_of = nodes; info_of = info; add_empty = add; set_before = set;
}
int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void ***before, size_t *count) {
    static void *found[1000];
    *before = found;
    return info_of(stream, status, graph, found, count);
}
int cuGraphAddEmptyNode(void **node, void *graph, void **before, size_t count) {
    return add_empty(node, graph, before, count);
}
int cuStreamUpdateCaptureDependencies(void *stream, void **nodes, size_t count, unsigned flags) {
    return count == 1 && flags == 1 ? set_before(stream, nodes) : 1;
}
int cuGraphGetNodes(void *graph, void **nodes, size_t *count) { return nodes_of(graph, nodes, count); }
int cuGraphNodeGetType(void *node, int *kind) { *kind = (int)(intptr_t)node - 1; return 0; }
"""


def _answer_about_graphs(libcuda: ctypes.PyDLL, desk: DeskCuda) -> tuple[Any, ...]:
    """Nodes are their kinds, from one on; returns what has to stay alive."""
    pointer = ctypes.POINTER

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, pointer(ctypes.c_void_p), pointer(ctypes.c_size_t))
    def nodes_of(graph: int, nodes: Any, count: Any) -> int:
        found = desk.nodes(graph)
        count[0] = len(found)
        for number, kind in enumerate(found if nodes else ()):
            nodes[number] = kind + 1
        return 0

    void, count_of = ctypes.c_void_p, pointer(ctypes.c_size_t)

    @ctypes.CFUNCTYPE(ctypes.c_int, void, pointer(ctypes.c_int), pointer(void), pointer(void), count_of)
    def info_of(stream: int, status: Any, graph: Any, before: Any, count: Any) -> int:
        found = desk.capture_info(stream)
        status[0] = found is not None
        graph[0], nodes = found or (0, [])
        count[0] = len(nodes)
        for number, node in enumerate(nodes):
            before[number] = node
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int, pointer(void), void, pointer(void), ctypes.c_size_t)
    def add_empty(node: Any, graph: int, before: Any, count: int) -> int:
        node[0] = desk.add_empty_node(graph, [before[number] for number in range(count)])
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int, void, pointer(void))
    def set_before(stream: int, nodes: Any) -> int:
        return desk.set_captured_before(stream, nodes[0])

    functions = (nodes_of, info_of, add_empty, set_before)
    libcuda.desk_graphs(*functions)
    return functions


def _remembering(compile_program: Callable[..., Any], desk: DeskCuda) -> Callable[..., Any]:
    def compiled(self: Any, *arguments: Any, **options: Any) -> Any:
        image, mapping = compile_program(self, *arguments, **options)
        desk.sources[image] = self.src
        return image, mapping

    return compiled


def _replace(module: Any, desk: DeskCuda, error: type[Exception]) -> None:
    """Each function of the module that the desk has."""
    table: dict[str, tuple[str, Callable[..., Any]]] = {}
    for name, capsule in module.__pyx_capi__.items():
        method = getattr(desk, _snake(name), None)
        if method is not None:
            table[name] = (_signature(capsule), _checked(desk, name, method, error))
    library = _compiled("\n".join(_c_function(name, signature) for name, (signature, _) in table.items()))
    for name, (_, function) in table.items():
        getattr(library, f"set_{name}")(ctypes.py_object(function))
        address = ctypes.cast(getattr(library, f"desk_{name}"), ctypes.c_void_p)
        _set_pointer(module.__pyx_capi__[name], address)
        if hasattr(module, name):
            setattr(module, name, function)
    _kept.append((library, table))


def _checked(desk: DeskCuda, name: str, method: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        try:
            with desk.lock:
                desk.check(name)
                return method(*arguments)
        except CudaStatusError as failure:
            raise error(failure.status) from None

    return call


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _c_function(name: str, signature: str) -> str:
    """A C function of the signature that calls what `set_NAME` was given."""
    parts = re.fullmatch(r"(.*?)\s*\((.*)\)", signature)
    assert parts, signature
    result, kinds = parts[1], [kind.strip() for kind in parts[2].split(",")]
    declared, formats, given = [], "", ["found_" + name]
    for position, kind in enumerate(kinds):
        if kind in ("void", "int __pyx_skip_dispatch"):
            declared.append(kind)
            continue
        if kind.startswith("struct __pyx_opt_args"):
            declared.append(f"struct optional *a{position}")
            formats += "i"
            given.append(f"a{position} ? a{position}->value : -1")
            continue
        code, c_type = _FORMATS[kind]
        declared.append(f"{kind} a{position}")
        formats += code
        given.append(f"({c_type})a{position}")
    setter = f"void set_{name}(PyObject *f) {{ Py_INCREF(f); found_{name} = f; }}"
    call = f'PyObject *found = PyObject_CallFunction({given[0]}, "({formats})"{"".join(", " + g for g in given[1:])});'
    body = "return found;"
    if result.startswith("struct __pyx_obj"):  # an object of a class of CuPy's
        body = f"return ({result})found;"
    elif result != "PyObject *":
        convert, failed = _RESULTS[result]
        body = f"if (!found) return {failed}; {result} value = {convert}; Py_DECREF(found); return value;"
    return f"static PyObject *found_{name}; {setter}\n{result} desk_{name}({', '.join(declared)}) {{ {call} {body} }}"


def _compiled(functions: str, *flags: str) -> ctypes.PyDLL:
    folder = Path(tempfile.mkdtemp(prefix="iosched-desk-"))
    header = "#include <Python.h>\n#include <stdint.h>\nstruct optional { int n; int value; };\ntypedef int CUdevice;\n"
    (folder / "desk.c").write_text(header + functions)
    include = sysconfig.get_paths()["include"]
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", f"-I{include}", *flags, "-o", "desk.so", "desk.c"]
    subprocess.run(command, cwd=folder, check=True)
    library = ctypes.PyDLL(str(folder / "desk.so"))
    shutil.rmtree(folder)
    return library


def _signature(capsule: Any) -> str:
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    found: bytes = name(capsule)
    return found.decode()


def _set_pointer(capsule: Any, address: ctypes.c_void_p) -> None:
    set_pointer = ctypes.pythonapi.PyCapsule_SetPointer
    set_pointer.argtypes = [ctypes.py_object, ctypes.c_void_p]
    assert set_pointer(capsule, address) == 0


@contextmanager
def one_gpu() -> Iterator[DeskCuda]:
    """The desk with one GPU that is reset."""
    found = install()
    found.reset()
    found.count = 1
    gc.collect()
    cupy = importlib.import_module("cupy")
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.clear_memo()  # of what the last GPU could compile
    yield found
    found.reset()


@contextmanager
def two_gpus() -> Iterator[DeskCuda]:
    """The desk with two of them."""
    with one_gpu() as found:
        found.count = 2
        yield found
