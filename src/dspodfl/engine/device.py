"""Devices and precisions: names of the configuration, checked and set in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dspodfl.errors import InputError


def choose_device(name: str) -> torch.device:
    """Return the device of a name.

    Args:
        name: "auto" (CUDA where there is a device, else the CPU), "cpu", "cuda" or "cuda:0", ….

    Returns:
        The device.

    Raises:
        InputError: The name is none of these, or there is no such device.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name not in ("auto", "cpu", "cuda") and not name.startswith("cuda:"):
        raise InputError("device", name, "auto, cpu or cuda")
    try:
        found = torch.cuda.is_available()
        if name == "auto":
            return torch.device("cuda" if found else "cpu")
        device = torch.device(name)
        missing = device.type == "cuda" and (not found or (device.index or 0) >= torch.cuda.device_count())
    except RuntimeError as error:
        raise InputError("device", name, f"auto, cpu or cuda ({error})") from None
    if missing:
        raise InputError("device", name, "auto or cpu: no such CUDA device is available here")
    return device


def choose_precision(name: str, device: torch.device) -> tuple[str, torch.dtype, torch.dtype]:
    """Return the precision that a name means on a device.

    Args:
        name: "auto" (tf32 on CUDA, else fp32), "fp64", "fp32", "tf32" or "bf16".
        device: Where models are.

    Returns:
        The precision in force, the dtype of parameters and the dtype in which gradients are computed.

    Raises:
        InputError: The device has no tf32.

    >>> choose_precision("auto", torch.device("cpu"))
    ('fp32', torch.float32, torch.float32)
    """
    if name == "auto":
        name = "tf32" if device.type == "cuda" else "fp32"
    if name == "tf32" and device.type != "cuda":
        raise InputError("train.precision", "tf32", f"auto, fp64, fp32 or bf16 on the device {device.type!r}")
    if name == "fp64":
        return name, torch.float64, torch.float64
    return name, torch.float32, torch.bfloat16 if name == "bf16" else torch.float32


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Set whether PyTorch's float32 products and convolutions use TF32, within a ``with`` block.

    Args:
        precision: As `choose_precision` returns it; "tf32" allows TF32, any other forbids it.

    Returns:
        A context manager that restores the previous settings at its end.
    """
    before = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions
