"""Runs a module of the package that this file is of: ``python start.py module words``.

Python puts this file's directory on the path, and not the current one. The package's own takes its place, so that a
process has the same code as the one that started it, wherever that found it.
"""

import sys

HERE = __file__.rpartition("/")[0]
sys.path[:] = [HERE.rsplit("/", 2)[0], *(entry for entry in sys.path if entry != HERE)]

import runpy  # noqa: E402  not before the path is right

del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
