"""Weights of a model from a file, read without running anything the file may hold."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from dspodfl.errors import DataError, InputError, bounded

SUFFIXES = (".safetensors", ".pth", ".pt")


def read_weights(path: str | os.PathLike[str], shapes: Mapping[str, torch.Size], prefix: str = "") -> dict[str, Tensor]:
    """The named tensors of a file, float32, exactly those that ``shapes`` names.

    Names in the file that do not start with ``prefix`` are left aside; those that do must be in ``shapes``.
    A wrong path, name or shape is an `InputError`; a file that cannot be read as tensors is a `DataError`.
    """
    file = Path(path)
    state = _read(file)
    missing = [name for name in shapes if name not in state]
    unknown = [name for name in state if name.startswith(prefix) and name not in shapes]
    for names, verb in ((missing, "lacks"), (unknown, "has besides")):
        if names:
            raise InputError(
                "model.weights",
                str(file),
                f"a plain VGG11 in torchvision's naming; it {verb} {_listed(names)}",
            )
    for name, shape in shapes.items():
        value = state[name]
        if value.shape != shape:
            got = f"{name} has shape {tuple(value.shape)} and must have {tuple(shape)}"
            raise InputError("model.weights", str(file), f"weights of this model; {got}")
        dense = value.layout is torch.strided and value.device.type == "cpu"
        if not (dense and value.is_floating_point() and bool(torch.isfinite(value).all())):
            raise DataError(f"model.weights: {name} in {file} is not a dense tensor of finite floats")
    return {name: state[name].detach().float() for name in shapes}


def _read(file: Path) -> dict[str, Tensor]:
    if file.suffix not in SUFFIXES:
        raise InputError("model.weights", str(file), f"a file whose name ends in {', '.join(SUFFIXES)}")
    try:
        bounded.check(file)
        bounded.fits(file, bounded.unpacked_size(file))
    except bounded.MissingFileError:
        raise InputError("model.weights", str(file), "a file that exists") from None
    except DataError as error:
        raise DataError(f"model.weights: {error}") from None
    try:
        if file.suffix == ".safetensors":
            state = safetensors.torch.load_file(file)
        else:
            with warnings.catch_warnings():  # torch speaks of its own plans there, not of the file
                warnings.simplefilter("ignore")
                state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as cause:
        # torch's text advises to switch its protection off, so only the kind of failure is passed on.
        raise DataError(
            f"model.weights: {file} cannot be read as tensors ({type(cause).__name__}): it is damaged, or "
            "holds other Python objects; save the state_dict alone, best as safetensors"
        ) from cause
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items()
    ):
        raise DataError(f"model.weights: {file} does not hold a state_dict, tensors by name; save that alone")
    return state


def _listed(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
