"""Prints the compute capabilities for which the installed PyTorch has kernels: 90 means 9.0."""


def main() -> None:
    """Runs in a process of its own, because importing PyTorch takes seconds."""
    import torch

    text = torch._C._cuda_getArchFlags()
    assert text is not None  # PyTorch is a CUDA build: build.find_torch
    flags = [flag.removeprefix("sm_") for flag in text.split()]
    print(*sorted(int(flag) for flag in flags if flag.isdigit()))


if __name__ == "__main__":
    main()
