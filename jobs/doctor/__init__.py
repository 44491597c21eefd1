"""The job `doctor`: facts for a bug report, problems of the installation, and how to fix them.

Each check is a function `check_NAME` of a module here, listed in `diagnosis.CHECKS`.
"""
