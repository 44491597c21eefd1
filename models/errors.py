"""The errors that iosched raises on purpose; `cli/` maps each class to an exit code.

Messages say what is wrong, where, and how to fix it.
"""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, shortened, or its class if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")[:300]


class IoschedError(Exception):
    """Base of all deliberate errors; any other exception is a bug."""


class UsageError(IoschedError):
    """A wrong option, name, or combination of them (exit code 2)."""


class ClosedError(UsageError):
    """A model is closed (exit code 2)."""


class InvalidModelError(IoschedError):
    """The input is not a runnable model: broken, unbound, or not ONNX (exit code 2)."""


class InvalidScheduleError(IoschedError):
    """A schedule is broken, or made for another graph, shape or precision (exit code 2)."""


class DeviceError(IoschedError):
    """A device or an optional dependency is missing (exit code 3)."""


class SeparateProcessError(DeviceError):
    """A separate process that runs a model failed, ended or hung (exit code 3).

    Attributes:
        candidate: the name of the model among those that are timed; empty if it is not timed.
    """

    candidate = ""


class MismatchError(IoschedError):
    """Outputs differ from the reference, or a regression gate failed (exit code 4)."""


class ExecutionError(IoschedError):
    """A loaded model failed while running (exit code 1)."""


class OtherDeviceWarning(UserWarning):
    """A schedule runs on another device than it was made for, where another may be faster."""


class SetAsideWarning(UserWarning):
    """A file of an earlier version was renamed, because this version cannot read it."""


class PlanWarning(UserWarning):
    """The plan file of an exported model is not used, and the model is prepared again."""


class ResourceError(ExecutionError):
    """The machine is out of memory, threads or disk space (exit code 1)."""


class BusyError(ExecutionError):
    """A request is not served: too many wait, or it waited for too long (exit code 1)."""


class PlanError(ExecutionError):
    """A plan of ours failed; the model is not at fault (exit code 1).

    Attributes:
        place: the operator at which it failed; empty if unknown.
    """

    place = ""


class DeviceLostError(IoschedError):
    """A device stopped working for this process (exit code 1).

    Not an `ExecutionError`, after which another candidate may still run.
    """
