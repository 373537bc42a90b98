"""Generates C stubs for all functions of the CUDA libraries that csrc/ does not define.

The names come from the undefined symbols of the installed PyTorch and, for the
driver and the runtime (which extensions and Triton call, too), from their
headers. The definitions are weak: where csrc/ defines a function, the linker
uses that one.
"""

import re
import shutil
import subprocess
from pathlib import Path

from predictor.common.errors import InputError

#: Libraries of PyTorch that call CUDA libraries.
CALLERS = (
    "libtorch_cuda.so",
    "libc10_cuda.so",
    "libtorch_cuda_linalg.so",
    "libtorch_python.so",
    "libcaffe2_nvrtc.so",
)

_CUDA = re.compile(r"^(__cuda|cuda[A-Z]|cu(blas|dnn|sparse|fft|solver|rand)|cu[A-Z]|nccl)")

#: Prefix of a library -> its status code for "not supported" (from its header).
_NOT_SUPPORTED = {"cusparse": 10, "cusolver": 9, "cufft": 16, "cudnn": 3000, "cublas": 15, "cuda": 801}

#: Functions that return a value through a pointer. Success without a value would
#: leave garbage there, so they return "not supported" unless csrc/ defines them.
_ANSWERS = re.compile(r"Get|Find|[bB]ufferSize|Estimation|MaxActive|[Aa]lloc|Query")

_HEADER = """\
/* Written by stub_functions.py for the installed PyTorch. */
#include "emulator.h"
#include <stdio.h>
#define WEAK __attribute__((weak))
#define SUCCEED(name) WEAK long name(void) { return 0; }
#define LAUNCH(name) WEAK long name(void) { count_launch(); return 0; }
#define CREATE(name) WEAK long name(void **made) { *made = new_handle(); return 0; }
#define REFUSE(name, status) WEAK long name(void) { return refuse(#name, status); }
#define TEXT(name) WEAK const char *name(void) { return "not supported by the emulated GPU"; }

static long refuse(const char *name, long status) {
  fprintf(stderr, "peakcast: %s is not supported by the emulated GPU\\n", name);
  return status;
}
"""


def undefined_symbols(library: Path) -> list[str]:
    """The symbols that `library` needs from other libraries, without their versions."""
    if shutil.which("nm") is None:
        raise InputError("the emulated GPU is compiled on first use and nm was not found: install gcc and binutils")
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    return [line.split()[-1].split("@")[0] for line in listing.splitlines()]


def stub(name: str) -> str:
    """The line of C that defines the stub of one function."""
    if re.search(r"Error(String|Name)|StatusString", name):
        return f"TEXT({name})"
    if _ANSWERS.search(name):
        status = next((code for lib, code in _NOT_SUPPORTED.items() if name.startswith(lib)), 1)
        return f"REFUSE({name}, {status})"
    if re.search(r"Create|CommInit", name):
        return f"CREATE({name})"
    if re.search(r"Set|Destroy|Register|Unregister|^cuda", name):
        return f"SUCCEED({name})"
    return f"LAUNCH({name})"


def declared_functions(header: Path, prefix: str) -> set[str]:
    """The functions that a CUDA header declares, under all their names (`cuMemAlloc_v2`, too)."""
    text = header.read_text(errors="replace")
    names = set(re.findall(rf"\bCUDA(?:API|RTAPI)\s+({prefix}[A-Z]\w*)\s*\(", text))
    for plain, versioned in re.findall(rf"#define\s+({prefix}[A-Z]\w*)\s+({prefix}[A-Z]\w*_v\d)\b", text):
        names |= {plain, versioned} if plain in names else set()
    return names


def stub_source(torch_libraries: Path, headers: list[Path]) -> str:
    """C source with a stub for every CUDA function that a job may call."""
    names = {
        name
        for caller in CALLERS
        if (torch_libraries / caller).exists()
        for name in undefined_symbols(torch_libraries / caller)
        if _CUDA.match(name)
    }
    for file, prefix in (("cuda.h", "cu"), ("cuda_runtime_api.h", "cuda")):
        header = next(path / file for path in headers if (path / file).exists())
        names |= declared_functions(header, prefix)
    return _HEADER + "\n".join(stub(name) for name in sorted(names)) + "\n"
