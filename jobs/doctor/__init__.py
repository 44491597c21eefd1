"""The job `doctor`: what a report of a bug needs, what is wrong on this machine, and the way out.

Each check is a module here with a function `look`, named in `diagnosis.CHECKS`.
"""
