"""Builds the libraries of the emulated GPU once for each installed PyTorch, in the user's cache directory."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate import child
from calibrate.emulator import installed_torch, stub_functions
from predictor.common import storage
from predictor.common.errors import InputError
from predictor.common.installing import pip_install

SOURCES = Path(__file__).parent / "csrc"
LIBRARY = "libpeakcast_emulator.so"
#: Names under which programs open the driver at run time. All are links to one file, so that they share one state.
ALIASES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
#: PyTorch opens the compiler of kernels by name, on a path of its own. A library
#: that is already loaded under that name takes its place.
NVRTC = "libnvrtc.so.{major}"
_WHEEL_HEADERS = ("cu13", "cu12", "cuda_runtime", "cudnn", "nccl")


@dataclass(frozen=True)
class Torch:
    """The location and versions of the installed PyTorch."""

    directory: Path
    version: str
    cuda: str

    @property
    def cuda_number(self) -> int:
        """CUDA's version as an integer, as the runtime reports it (13.0 is 13000)."""
        major, minor = self.cuda.split(".")[:2]
        return int(major) * 1000 + int(minor) * 10

    @property
    def nvrtc(self) -> str:
        """The file name under which PyTorch opens the kernel compiler."""
        return NVRTC.format(major=self.cuda_number // 1000)


@dataclass(frozen=True)
class Build:
    """A built emulator: its directory and its PyTorch."""

    directory: Path
    torch: Torch
    binary_versions: tuple[int, ...]  # compute capabilities for which PyTorch has kernels: 90 means 9.0

    @property
    def libraries(self) -> tuple[Path, Path]:
        """The libraries that a job loads before all others."""
        return self.directory / LIBRARY, self.directory / self.torch.nvrtc


def find_torch(interpreter: str = sys.executable) -> Torch:
    """Finds the PyTorch of an interpreter without importing it.

    Raises:
        InputError: PyTorch is not installed, or is a CPU-only build.
    """
    found = _installed(interpreter)
    if not found:
        if interpreter == sys.executable:
            raise InputError("PyTorch is not installed here: "
                             f"{pip_install('peakcast[calibrate]')} (with a CUDA build of torch)")
        raise InputError(f"PyTorch is not installed in the environment of {interpreter}: "
                         f"{pip_install('torch', interpreter=interpreter)} (a CUDA build)")
    if not found["cuda"] or not found["has_kernels"]:
        raise InputError(
            f"PyTorch {found['version']} is a CPU-only build; the emulated GPU runs the CUDA code "
            "inside PyTorch: install a CUDA build (no GPU or driver is needed)"
        )
    return Torch(Path(found["directory"]), found["version"], found["cuda"])


def has_torch(interpreter: str) -> bool:
    """Whether an interpreter has PyTorch."""
    return bool(_installed(interpreter))


def _installed(interpreter: str) -> dict[str, Any]:
    if interpreter == sys.executable:
        return installed_torch.installed()
    answer = subprocess.run([interpreter, installed_torch.__file__], capture_output=True, text=True).stdout
    return json.loads(answer or "{}")


def cache_root() -> Path:
    """The directory of built emulators. If the user has no cache directory, it is temporary and this process's own."""
    return (storage.user_cache_directory() or storage.private_directory()) / "emulator"


def ensure_built(interpreter: str = sys.executable) -> Build:
    """The emulator for the PyTorch of an interpreter. The first use builds it, which takes some seconds.

    Several processes may call this at once: one builds, the others wait.
    A build appears atomically, when its directory is renamed.

    Raises:
        InputError: there is no suitable PyTorch or C compiler, or the cache directory cannot be written.
    """
    torch = find_torch(interpreter)
    root = cache_root()
    final = root / _fingerprint(torch)
    if not os.path.exists(final):  # also False if its parent may not be read
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / "lock").touch()
        except OSError as error:
            reason = f"{error.strerror}; set XDG_CACHE_HOME"
            raise InputError(f"cannot write the emulator's cache {root}: {reason}") from None
        with open(root / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not final.exists():
                _build(torch, root, final, interpreter)
    facts = json.loads((final / "build.json").read_text())
    return Build(final, torch, tuple(facts["binary_versions"]))


def _fingerprint(torch: Torch) -> str:
    digest = hashlib.sha256(f"{torch.version} {torch.directory}".encode())
    for source in sorted([*SOURCES.rglob("*.[ch]"), Path(stub_functions.__file__), Path(__file__)]):
        digest.update(source.read_bytes())
    return f"torch-{torch.version}-{digest.hexdigest()[:12]}"


def _build(torch: Torch, root: Path, final: Path, interpreter: str) -> None:
    for leftover in root.glob("building-*"):  # these builds were killed: no other is running, because we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix="building-", dir=root))
    try:
        header_directories = _header_directories(torch)
        headers = [f"-I{path.absolute()}" for path in header_directories]
        (directory / "stubs.c").write_text(stub_functions.stub_source(torch.directory / "lib", header_directories))
        nvrtc = SOURCES / "nvrtc.c"
        others = sorted(set(SOURCES.glob("*.c")) - {nvrtc})
        nccl = f"-DNCCL_VERSION_CODE={_nccl_version(header_directories)}"
        _compile(directory / LIBRARY, [*others, directory / "stubs.c"], [nccl, *headers])
        versions = directory / "version.map"
        versions.write_text(f"{torch.nvrtc} {{ global: nvrtc*; local: *; }};\n")
        named = [f"-Wl,-soname={torch.nvrtc}", f"-Wl,--version-script={versions}"]
        major = f"-DNVRTC_MAJOR={torch.cuda_number // 1000}"
        _compile(directory / torch.nvrtc, [nvrtc], [major, *named])
        for alias in ALIASES:
            (directory / alias).symlink_to(LIBRARY)
        facts = {"torch": torch.version, "cuda": torch.cuda, "binary_versions": _binary_versions(interpreter)}
        (directory / "build.json").write_text(json.dumps(facts, indent=1))
        directory.rename(final)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _compile(library: Path, sources: list[Path], options: list[str]) -> None:
    compiler = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
    program = shutil.which(compiler) if compiler else None
    if program is None or shutil.which("nm") is None:
        raise InputError(
            "the emulated GPU is compiled on first use and no C compiler was found: install gcc and binutils, or set CC"
        )
    command = [os.path.abspath(program), "-O2", "-fPIC", "-shared", "-pthread"]
    command += [f"-I{SOURCES}", f"-I{SOURCES / 'shim'}", *options, "-o", str(library), *map(str, sources), "-ldl"]
    # In another directory: an empty entry of CPATH or LIBRARY_PATH means the current one, which is the user's.
    result = subprocess.run(command, capture_output=True, text=True, cwd=library.parent)
    if result.returncode:
        first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:300])
        raise InputError(f"the emulated GPU does not compile with {compiler}: {first}")


def _header_directories(torch: Torch) -> list[Path]:
    """The directories of CUDA's headers: from the NVIDIA wheels on which PyTorch depends, else from CUDA_HOME."""
    wheels = torch.directory.parent / "nvidia"
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    directories = [path for name in _WHEEL_HEADERS if (path := wheels / name / "include").is_dir()]
    for header in ("cuda_runtime_api.h", "cuda.h", "cudnn.h", "nccl.h"):
        if any((path / header).exists() for path in directories):
            continue
        if not (home / header).exists():
            raise InputError(
                f"{header} is neither in the NVIDIA packages beside PyTorch ({wheels}) nor in {home}: "
                "install PyTorch from PyPI, or set CUDA_HOME"
            )
        directories.append(home)
    return directories


def _nccl_version(headers: list[Path]) -> str:
    header = next(path / "nccl.h" for path in headers if (path / "nccl.h").exists())
    match = re.search(r"#define NCCL_VERSION_CODE (\d+)", header.read_text())
    assert match is not None  # every nccl.h defines it
    return match[1]


def _binary_versions(interpreter: str) -> list[int]:
    """The compute capabilities for which an interpreter's PyTorch has kernels. It imports PyTorch: some seconds."""
    result = subprocess.run(**child.python("calibrate.emulator.binaries", interpreter=interpreter),
                            capture_output=True, text=True)
    if result.returncode:
        raise InputError(f"PyTorch cannot be imported: {result.stderr.strip().splitlines()[-1]}")
    return [int(number) for number in result.stdout.split()]
