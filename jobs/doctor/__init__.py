"""The job `doctor`: facts for a bug report, problems of the installation, and how to fix them.

Each check is a module here with a function `look`, named in `diagnosis.CHECKS`.
"""
