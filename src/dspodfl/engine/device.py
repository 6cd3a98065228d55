"""Devices and precisions: what is asked for, checked, and what PyTorch is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dspodfl.errors import InputError


def choose_device(name: str) -> torch.device:
    """``auto`` is CUDA where there is one; asking for CUDA without one is an error."""
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
    """The precision in force, the dtype of parameters and the dtype in which gradients are computed."""
    if name == "auto":
        name = "tf32" if device.type == "cuda" else "fp32"
    if name == "tf32" and device.type != "cuda":
        raise InputError("train.precision", "tf32", f"auto, fp64, fp32 or bf16 on the device {device.type!r}")
    if name == "fp64":
        return name, torch.float64, torch.float64
    return name, torch.float32, torch.bfloat16 if name == "bf16" else torch.float32


@contextmanager
def products(precision: str) -> Iterator[None]:
    """Let PyTorch's float32 products and convolutions use TF32 for a while, or keep them from it."""
    before = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = convolutions
