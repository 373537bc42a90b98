"""Prints the compute capabilities that the installed PyTorch has kernels for: 90 is 9.0."""


def main() -> None:
    """A process of its own asks: importing PyTorch takes seconds."""
    import torch

    flags = [flag.removeprefix("sm_") for flag in torch._C._cuda_getArchFlags().split()]
    print(*sorted(int(flag) for flag in flags if flag.isdigit()))


if __name__ == "__main__":
    main()
