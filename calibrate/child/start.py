"""Runs a module of the package that contains this file: ``python start.py module words``.

Python puts the directory of this file on the path, not the current one. This file replaces it by the package's parent
directory, so that the process runs the same code as the process that started it.
"""

import sys

HERE = __file__.rpartition("/")[0]
sys.path[:] = [HERE.rsplit("/", 2)[0], *(entry for entry in sys.path if entry != HERE)]

import runpy  # noqa: E402  the path must be set before any other import

del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
