"""Runs the child process that calls Ray, then ends its descendants and removes its folder.

python -m iosched.jobs.pool.ray.supervised PARENT FOLDER
"""

from __future__ import annotations

import shutil
import sys

from iosched.jobs.supervisor import main

if __name__ == "__main__":
    parent, folder = sys.argv[1:]
    code = main(int(parent), [sys.executable, "-P", "-m", "iosched.jobs.pool.ray.child"])
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(code)
