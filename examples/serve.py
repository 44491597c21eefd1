"""Serves models over HTTP, optimized or not, in one process on whose cores they share.

    pip install '.[cpu,examples]'                 # in the root of the clone
    python serve.py model.iosched.onnx other=other.onnx

It implements the JSON of the Open Inference Protocol (version 2 of KServe and Triton):

    GET  /v2/health/live, /v2/health/ready
    GET  /v2/models/NAME            its inputs and outputs
    POST /v2/models/NAME/infer      {"inputs": [{"name", "datatype", "shape", "data": [...]}]}

With --workers, each process opens the models itself, on its own cores (docs/serving.md). SIGTERM lets requests that
have arrived end. A file with several batch sizes (docs/throughput.md) accepts any up to the largest, or
--largest-batch; those without a schedule are opened by their first request.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from argparse import ArgumentParser
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import uvicorn
from anyio.to_thread import current_default_thread_limiter
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import iosched

MODELS, THREADS, WAITING, TIMEOUT, LARGEST = (
    f"SERVE_{each}" for each in ("MODELS", "THREADS", "WAITING", "TIMEOUT", "LARGEST")
)
"""Environment variables that configure the worker processes."""

DATATYPES = {
    "FP32": "float32", "FP64": "float64", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "BOOL": "bool",
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DATATYPES.items()}
BYTES_A_NUMBER = 32  # of JSON, at most
SECONDS_TO_SEND = 30
SPARE_THREADS = 16
OPEN = -1  # the protocol's dynamic dimension

if TYPE_CHECKING:  # avoids importing onnx before the model is opened
    Model = iosched.LoadedModel | iosched.LoadedBatches
    Spec = iosched.TensorSpec | iosched.DynamicBatchSpec


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="[NAME=]PATH", help="by default, the name is that of the file")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 accepts other machines")
    parser.add_argument("--port", type=int, default=8000, help="0 picks a free port")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--threads", type=int, help="cores per process; by default all cores, divided evenly")
    parser.add_argument("--waiting", type=int, default=64, help="requests queued per model; more are rejected")
    parser.add_argument("--timeout", type=float, default=30, help="seconds after which a queued request is rejected")
    parser.add_argument("--largest-batch", type=int, help="for files with several batch sizes; by default the largest")
    options = parser.parse_args()
    if options.threads is None and options.workers > 1:
        options.threads = max(1, len(os.sched_getaffinity(0)) // options.workers)
    os.environ[MODELS] = json.dumps(dict(map(named, options.models)))
    os.environ[THREADS] = str(options.threads or "")
    os.environ[WAITING] = str(options.waiting)
    os.environ[TIMEOUT] = str(options.timeout)
    os.environ[LARGEST] = str(options.largest_batch or "")
    uvicorn.run(
        "serve:application",
        factory=True,
        app_dir=str(Path(__file__).parent),
        host=options.host,
        port=options.port,
        workers=options.workers,
        timeout_graceful_shutdown=30,
        timeout_worker_healthcheck=60,  # allow a slow start
    )


def named(word: str) -> tuple[str, str]:
    """Name and absolute path of a model."""
    name, separator, path = word.rpartition("=")
    name = name if separator else Path(path).name.removesuffix(".onnx").removesuffix(".iosched")
    return name, str(Path(path).resolve())


def application() -> Starlette:
    """The application of one process."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        paths, waiting, threads = json.loads(os.environ[MODELS]), int(os.environ[WAITING]), os.environ[THREADS]
        policy = iosched.ServingPolicy(dict.fromkeys(paths, iosched.ModelPolicy(most_waiting=waiting)))
        with iosched.serve_together(paths, policy, threads=int(threads) if threads else None) as served:
            app.state.served = served
            # A queued request has a thread; some more read the requests that are then rejected.
            current_default_thread_limiter().total_tokens = len(paths) * waiting + served.cores + SPARE_THREADS
            yield

    return Starlette(
        routes=[
            Route("/v2/health/live", healthy),
            Route("/v2/health/ready", healthy),
            Route("/v2/models/{name}", describe),
            Route("/v2/models/{name}/infer", infer, methods=["POST"]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: refuse},
    )


async def healthy(request: Request) -> Response:
    """Answers 200; a process accepts requests only after opening the model."""
    return Response()


async def describe(request: Request) -> Response:
    """Returns names, types and shapes of inputs and outputs."""
    model = model_of(request)
    return JSONResponse(
        {
            "name": request.path_params["name"],
            "platform": "onnx",
            "inputs": [metadata(spec) for spec in model.inputs],
            "outputs": [metadata(spec) for spec in model.outputs],
        }
    )


async def infer(request: Request) -> Response:
    """Runs the model in a thread, so that the event loop can answer other requests."""
    model = model_of(request)
    most = 65536 + BYTES_A_NUMBER * sum(size(spec, largest_batch(model)) for spec in model.inputs)
    body = await body_of(request, most)  # before taking a place in the queue
    return await run_in_threadpool(answer, request, model, body)


async def refuse(request: Request, error: Exception) -> Response:
    """Returns an error in the protocol's form."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def model_of(request: Request) -> Model:
    """The model that the path names."""
    name, models = request.path_params["name"], request.app.state.served.models
    if name not in models:
        raise HTTPException(404, f"no model {name!r}; this server has {', '.join(map(repr, models))}")
    found: Model = models[name]
    return found


def largest_batch(model: Model) -> int:
    """The largest batch size of a request; 1 for files with one batch size."""
    if not isinstance(model, iosched.LoadedBatches):
        return 1
    return int(os.environ[LARGEST] or max(model.schedules.batch_sizes))


async def body_of(request: Request, most: int) -> bytes:
    """The body, up to `most` bytes."""
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS_TO_SEND):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise HTTPException(413, f"the request exceeds {most} bytes, the limit for this model")
    except (TimeoutError, ClientDisconnect) as error:
        raise HTTPException(408, f"the request did not arrive within {SECONDS_TO_SEND} s") from error
    return bytes(body)


def answer(request: Request, model: Model, body: bytes) -> Response:
    inputs, name = inputs_of(body), request.path_params["name"]
    refuse_larger(model, inputs)
    try:
        found = request.app.state.served.run(name, inputs, timeout=float(os.environ[TIMEOUT]))
    except iosched.UsageError as error:  # a name, a type or a shape
        raise HTTPException(400, str(error)) from error
    except iosched.BusyError as error:
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
    outputs = [
        {"name": name, "datatype": NAMES[array.dtype.name], "shape": array.shape, "data": array.reshape(-1).tolist()}
        for name, array in found.items()
    ]
    try:
        return JSONResponse({"model_name": name, "outputs": outputs})
    except ValueError as error:
        raise HTTPException(500, "an output has infinities or NaN, which JSON cannot represent") from error


def refuse_larger(model: Model, inputs: dict[str, np.ndarray]) -> None:
    """Refuses batches that are too large; the model checks all other shapes."""
    largest = largest_batch(model)
    given = ((spec.shape or (), inputs[spec.name].shape) for spec in model.inputs if spec.name in inputs)
    sizes = (found for pair in given for dim, found in zip(*pair, strict=False) if isinstance(dim, str))
    if (found := max(sizes, default=0)) > largest:
        raise HTTPException(413, f"batch size {found} is too large; the limit is {largest}")


def inputs_of(body: bytes) -> dict[str, np.ndarray]:
    """The arrays in a request; the model checks names, types and shapes."""
    try:
        entries = json.loads(body, parse_constant=no_number)["inputs"]
        names = [entry["name"] for entry in entries]
        if len(set(names)) < len(names):
            raise ValueError(f"duplicate inputs: {', '.join(names)}")
        return {entry["name"]: array_of(entry) for entry in entries}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise HTTPException(400, f"the body is not a valid request: {type(error).__name__}: {error}") from error


def array_of(entry: dict[str, Any]) -> np.ndarray:
    """The array of one input, from a flat or nested list."""
    dtype = np.dtype(DATATYPES[entry["datatype"]])
    given = np.asarray(entry["data"])
    with np.errstate(over="ignore"):
        array = given.astype(dtype)
    fits = np.isfinite(array).all() if dtype.kind == "f" else np.array_equal(array, given)
    if given.dtype.kind == "U" or not fits:  # numpy turns null into NaN, and strings into numbers
        raise ValueError(f"{entry['name']} has values that are not {entry['datatype']}")
    return array.reshape(entry["shape"])


def no_number(text: str) -> float:
    """Refuses NaN and infinities, which are not JSON but accepted by Python."""
    raise ValueError(f"{text} is not a JSON number")


def metadata(spec: Spec) -> dict[str, Any]:
    """An input or output in the protocol's form."""
    shape = None if spec.shape is None else [OPEN if isinstance(dim, str) else dim for dim in spec.shape]
    return {"name": spec.name, "datatype": NAMES.get(spec.dtype, spec.dtype), "shape": shape}


def size(spec: Spec, batch_size: int) -> int:
    """The number of elements of a tensor."""
    return math.prod(batch_size if isinstance(dim, str) else dim for dim in spec.shape or ())


if __name__ == "__main__":
    main()
