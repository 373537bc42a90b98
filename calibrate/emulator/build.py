"""Build the stand-in libraries once per PyTorch, into the user's cache."""

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from calibrate import child
from calibrate.emulator import stub_functions
from predictor.common import storage
from predictor.common.errors import InputError

SOURCES = Path(__file__).parent / "csrc"
LIBRARY = "libpeakcast_emulator.so"
#: Names under which programs open the driver at run time: the same file, so one state.
ALIASES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
#: PyTorch opens the compiler of kernels by name, on a path of its own. A library
#: that is already loaded under that name is taken instead.
NVRTC = "libnvrtc.so.{major}"
_WHEEL_HEADERS = ("cu13", "cu12", "cuda_runtime", "cudnn", "nccl")


@dataclass(frozen=True)
class Torch:
    """The installed PyTorch, found without importing it."""

    directory: Path
    version: str
    cuda: str

    @property
    def cuda_number(self) -> int:
        """CUDA's version as the runtime reports it (13.0 is 13000)."""
        major, minor = self.cuda.split(".")[:2]
        return int(major) * 1000 + int(minor) * 10

    @property
    def nvrtc(self) -> str:
        """The file name under which PyTorch opens the kernel compiler."""
        return NVRTC.format(major=self.cuda_number // 1000)


@dataclass(frozen=True)
class Build:
    """A built emulator: where it lies, and what `PyTorch` it is for."""

    directory: Path
    torch: Torch
    binary_versions: tuple[int, ...]  # compute capabilities that PyTorch has kernels for: 90 is 9.0

    @property
    def libraries(self) -> tuple[Path, Path]:
        """What a job loads before anything else."""
        return self.directory / LIBRARY, self.directory / self.torch.nvrtc


def find_torch() -> Torch:
    """The PyTorch of this Python; InputError if there is none or it has no CUDA."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        raise InputError("PyTorch is not installed here: pip install torch (a CUDA build)")
    directory = Path(spec.origin).parent
    version = runpy.run_path(str(directory / "version.py"))
    if not version.get("cuda") or not (directory / "lib" / "libtorch_cuda.so").exists():
        raise InputError(
            f"PyTorch {version['__version__']} is a CPU-only build; the emulated GPU runs the CUDA code "
            "inside PyTorch: install a CUDA build (no GPU or driver is needed)"
        )
    return Torch(directory, str(version["__version__"]), version["cuda"])


def cache_root() -> Path:
    """Where built emulators are kept; this process's own directory, if the user has no place for them."""
    return (storage.of_user() or storage.private()) / "emulator"


def ensure_built() -> Build:
    """The emulator for the installed PyTorch, built if this is its first use (some seconds).

    Safe to call from several processes at once: one builds, the others wait.
    A build appears whole, by renaming its directory, or not at all.
    """
    torch = find_torch()
    root = cache_root()
    final = root / _fingerprint(torch)
    if not os.path.exists(final):  # False, too, of what may not be looked at
        try:
            root.mkdir(parents=True, exist_ok=True)
            (root / "lock").touch()
        except OSError as error:
            reason = f"{error.strerror}; set XDG_CACHE_HOME"
            raise InputError(f"cannot write the emulator's cache {root}: {reason}") from None
        with open(root / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not final.exists():
                _build(torch, root, final)
    facts = json.loads((final / "build.json").read_text())
    return Build(final, torch, tuple(facts["binary_versions"]))


def _fingerprint(torch: Torch) -> str:
    digest = hashlib.sha256(f"{torch.version} {torch.directory}".encode())
    for source in sorted([*SOURCES.rglob("*.[ch]"), Path(stub_functions.__file__), Path(__file__)]):
        digest.update(source.read_bytes())
    return f"torch-{torch.version}-{digest.hexdigest()[:12]}"


def _build(torch: Torch, root: Path, final: Path) -> None:
    for leftover in root.glob("building-*"):  # of a build that was killed: we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix="building-", dir=root))
    try:
        found = _header_directories(torch)
        headers = [f"-I{path.absolute()}" for path in found]
        (directory / "stubs.c").write_text(stub_functions.stub_source(torch.directory / "lib", found))
        nvrtc = SOURCES / "nvrtc.c"
        others = sorted(set(SOURCES.glob("*.c")) - {nvrtc})
        nccl = f"-DNCCL_VERSION_CODE={_nccl_version(found)}"
        _compile(directory / LIBRARY, [*others, directory / "stubs.c"], [nccl, *headers])
        versions = directory / "version.map"
        versions.write_text(f"{torch.nvrtc} {{ global: nvrtc*; local: *; }};\n")
        named = [f"-Wl,-soname={torch.nvrtc}", f"-Wl,--version-script={versions}"]
        major = f"-DNVRTC_MAJOR={torch.cuda_number // 1000}"
        _compile(directory / torch.nvrtc, [nvrtc], [major, *named])
        for alias in ALIASES:
            (directory / alias).symlink_to(LIBRARY)
        facts = {"torch": torch.version, "cuda": torch.cuda, "binary_versions": _binary_versions()}
        (directory / "build.json").write_text(json.dumps(facts, indent=1))
        directory.rename(final)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


def _compile(library: Path, sources: list[Path], options: list[str]) -> None:
    compiler = next((c for c in (os.environ.get("CC"), "cc", "gcc", "clang") if c and shutil.which(c)), None)
    if compiler is None or shutil.which("nm") is None:
        raise InputError(
            "the emulated GPU is compiled on first use and no C compiler was found: install gcc and binutils, or set CC"
        )
    command = [os.path.abspath(shutil.which(compiler)), "-O2", "-fPIC", "-shared", "-pthread"]
    command += [f"-I{SOURCES}", f"-I{SOURCES / 'shim'}", *options, "-o", str(library), *map(str, sources), "-ldl"]
    # elsewhere: an empty entry of CPATH or LIBRARY_PATH is the current directory
    result = subprocess.run(command, capture_output=True, text=True, cwd=library.parent)
    if result.returncode:
        first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:300])
        raise InputError(f"the emulated GPU does not compile with {compiler}: {first}")


def _header_directories(torch: Torch) -> list[Path]:
    """CUDA's headers: from the NVIDIA wheels that PyTorch depends on, else from CUDA_HOME."""
    wheels = torch.directory.parent / "nvidia"
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"
    found = [path for name in _WHEEL_HEADERS if (path := wheels / name / "include").is_dir()]
    for header in ("cuda_runtime_api.h", "cuda.h", "cudnn.h", "nccl.h"):
        if any((path / header).exists() for path in found):
            continue
        if not (home / header).exists():
            raise InputError(
                f"{header} is neither in the NVIDIA packages beside PyTorch ({wheels}) nor in {home}: "
                "install PyTorch from PyPI, or set CUDA_HOME"
            )
        found.append(home)
    return found


def _nccl_version(headers: list[Path]) -> str:
    header = next(path / "nccl.h" for path in headers if (path / "nccl.h").exists())
    return re.search(r"#define NCCL_VERSION_CODE (\d+)", header.read_text())[1]


def _binary_versions() -> list[int]:
    """Which compute capabilities the installed PyTorch has kernels for (asked of it: seconds)."""
    answer = subprocess.run(**child.python("calibrate.emulator.binaries"), capture_output=True, text=True)
    if answer.returncode:
        raise InputError(f"PyTorch cannot be imported: {answer.stderr.strip().splitlines()[-1]}")
    return [int(number) for number in answer.stdout.split()]
