"""Starts the watcher of a dry run after `import torch`, for PyTorch 2.4, which has no entry points for it.

On the path of dry runs only. It takes the place of the environment's own module of this name, and runs it.
"""

import importlib.machinery
import importlib.util
import sys
from importlib.abc import MetaPathFinder


class _AfterTorch(MetaPathFinder):
    """Finds torch once, as Python would, and starts the watcher when it has run."""

    def find_spec(self, fullname, path, target=None):
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                import peakcast_watcher  # type: ignore[import-not-found]  # beside the entry points

                peakcast_watcher.start()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _AfterTorch())
_path = [entry for entry in sys.path if "autoload_2_4" not in entry]
_own = importlib.machinery.PathFinder.find_spec("sitecustomize", _path)
if _own is not None and _own.loader is not None:
    _own.loader.exec_module(importlib.util.module_from_spec(_own))
