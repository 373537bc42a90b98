"""Prints where PyTorch is installed, as one line of JSON, without importing it. Run by path, in any interpreter."""

import importlib.util
import json
import os
import runpy


def installed():
    """The directory, version, CUDA version and kernel library of the installed PyTorch; empty if there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return {}
    directory = os.path.dirname(spec.origin)
    version = runpy.run_path(os.path.join(directory, "version.py"))
    has_kernels = os.path.exists(os.path.join(directory, "lib", "libtorch_cuda.so"))
    return {"directory": directory, "version": str(version["__version__"]), "cuda": version.get("cuda"),
            "has_kernels": has_kernels}


if __name__ == "__main__":
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    print(json.dumps(installed()))
