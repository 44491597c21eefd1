"""Files are written completely or not at all, by any number of writers."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from iosched.models.files import atomic_write


def test_the_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old and long")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old and long"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with atomic_write(tmp_path / "a"):
        pass
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, failure: BaseException) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise failure

    with pytest.raises(type(failure)) as caught:
        fail()
    if isinstance(caught.value, OSError):
        assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_named_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(pipe) as file:
        file.write(b"told")
    assert os.read(reader, 10) == b"told"
    os.close(reader)
    assert list(tmp_path.iterdir()) == [pipe]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device_and_reports_that_it_is_full() -> None:
    with pytest.raises(OSError, match="No space left") as caught, atomic_write(Path("/dev/full")) as file:
        file.write(b"told")
    assert caught.value.filename == "/dev/full"
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    with atomic_write(tmp_path / ("x" * 255)) as file:
        file.write(b"told")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"told"


def test_of_two_writers_the_last_wins_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    first_is_open, second_is_done = threading.Event(), threading.Event()

    def write_slowly() -> None:
        with atomic_write(path) as file:
            file.write(b"first, ")
            first_is_open.set()
            second_is_done.wait(10)
            file.write(b"whole")

    slow = threading.Thread(target=write_slowly)
    slow.start()
    first_is_open.wait(10)
    with atomic_write(path) as file:
        file.write(b"second")
    assert path.read_bytes() == b"second"
    second_is_done.set()
    slow.join()
    assert path.read_bytes() == b"first, whole"
    assert list(tmp_path.iterdir()) == [path]
