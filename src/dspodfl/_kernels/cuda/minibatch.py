"""Minibatches of images on a GPU in one pass: from stored samples, by their numbers, to normalized inputs.

The reference implementation is the PyTorch code in `dspodfl.problem.problem.Problem.minibatch`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspodfl._kernels.triton_support import early, gdc_launch_dependents, jit, tl, usable

_BLOCK = 1024


def available(x: Tensor) -> bool:
    """Whether the kernel works for stored samples: images, (samples, channels, height, width)."""
    return usable(x.device) and x.ndim == 4


@jit
def _minibatch(
    x,
    y,
    batch_of,
    order,
    rows,
    row_index,
    at,
    who,
    model_row,
    images,
    labels,
    scale,
    shift,
    clients,
    drawn,
    row_index_width,
    channels,
    pixels,
    B: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_launch_dependents()
    t = tl.load(at).to(tl.int64)
    a = tl.program_id(0) // B
    b = tl.program_id(0) % B
    client = tl.load(order + t * clients + a)
    row = tl.load(rows + (t * drawn + tl.load(batch_of + client)) * B + b).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    size = channels * pixels
    stored = tl.load(x + row * size + (i % channels) * pixels + i // channels, mask=i < size, other=0)
    tl.store(images + tl.program_id(0).to(tl.int64) * size + i, stored.to(tl.float32) * scale + shift, mask=i < size)
    if tl.program_id(1) == 0:
        tl.store(labels + tl.program_id(0), tl.load(y + row))
        if b == 0:
            tl.store(who + a, client)
            tl.store(model_row + a, tl.load(row_index + t * row_index_width + client))


def minibatch(
    x: Tensor,
    y: Tensor,
    scale: float,
    shift: float,
    batch_of: Tensor,
    order: Tensor,
    rows: Tensor,
    row_index: Tensor,
    at: Tensor,
    active: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gather the minibatches of clients order[t, :active], t being the number that ``at`` holds.

    Returns these clients, the row index of each one's model, and the images and labels of their minibatches.
    Shapes: x (samples, C, H, W), y (samples,), batch_of (clients,), order (T, clients), rows (T, drawn clients, B),
    row_index (T, clients or more) -> (active,), (active,), (active, B, C, H, W) with channels last in memory,
    (active, B).
    """
    channels, height, width = x.shape[1:]
    batch = rows.shape[2]
    who, model_row = (torch.empty(active, dtype=torch.int64, device=x.device) for _ in range(2))
    images = torch.empty(active, batch, height, width, channels, device=x.device)
    labels = torch.empty(active, batch, dtype=y.dtype, device=x.device)
    pixels = height * width
    _minibatch[(active * batch, -(-channels * pixels // _BLOCK))](
        x, y, batch_of, order, rows, row_index, at, who, model_row, images, labels, scale, shift,
        order.shape[1], rows.shape[1], row_index.shape[1], channels, pixels,
        B=batch, BLOCK=_BLOCK, EARLY=early(x.device)["EARLY"],
    )  # fmt: skip
    return who, model_row, images.permute(0, 1, 4, 2, 3), labels
