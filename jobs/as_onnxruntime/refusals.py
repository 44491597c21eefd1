"""Errors that who catches onnxruntime's catches too, and who catches ours as well."""

from __future__ import annotations

from functools import cache

from iosched.models.errors import DeviceError, UsageError
from iosched.runtime.session import load_onnxruntime


class MissingInputError(UsageError, ValueError):
    """An input is missing: onnxruntime raises `ValueError` here."""


def invalid_argument(text: str) -> UsageError:
    """What is raised for a name, type or shape that the model does not have: onnxruntime's `InvalidArgument`, too."""
    return _invalid_argument()(text)


@cache
def _invalid_argument() -> type[UsageError]:
    try:
        load_onnxruntime()
    except DeviceError:
        return UsageError
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

    return type("InvalidArgument", (UsageError, InvalidArgument), {"__doc__": invalid_argument.__doc__})
