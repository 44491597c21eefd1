"""Every error that iosched raises on purpose.

`cli/` maps each class to one exit code, in one place; libraries may catch `IoschedError`. A message is for people:
what is wrong, where, and the way out, in at most a few lines.
"""


class IoschedError(Exception):
    """Base of all errors raised on purpose; anything else that escapes is a bug."""


class UsageError(IoschedError):
    """The call itself is wrong: an option, a name, a combination of them (exit code 2)."""


class InvalidModelError(IoschedError):
    """The input file is not a model that can be run: broken, unbound, or no ONNX at all (exit code 2)."""


class InvalidScheduleError(IoschedError):
    """A schedule is broken, or was made for another graph, shape or precision (exit code 2)."""


class DeviceError(IoschedError):
    """A device or an optional dependency is missing (exit code 3)."""


class MismatchError(IoschedError):
    """Outputs differ from the reference, or a regression gate failed (exit code 4)."""


class ExecutionError(IoschedError):
    """A model that loaded failed while it ran (exit code 1)."""


class OtherDeviceWarning(UserWarning):
    """A schedule runs on another device than it was made for; another schedule may be faster there."""


class SetAsideWarning(UserWarning):
    """A file of an earlier iosched was renamed, since this one does not read it."""


class ResourceError(ExecutionError):
    """The machine lacks memory, threads or disk space; neither the model nor iosched is at fault (exit code 1)."""


class PlanError(ExecutionError):
    """A plan of ours fails for a model that is not to blame (exit code 1).

    Attributes:
        place: the operator at which it fails; empty if that is not known.
    """

    place = ""


class DeviceLostError(IoschedError):
    """A device stopped working, and nothing runs on it in this process any more (exit code 1).

    No `ExecutionError`, after which another candidate may still run.
    """
