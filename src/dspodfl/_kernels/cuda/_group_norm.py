# mypy: ignore-errors
"""The Triton side of `dspodfl._kernels.cuda.group_norm`, which imports this module only where there is Triton.

A program owns some channels, whole groups of them, of one image. It reads their pixels several times; all but
the first read comes from the cache. Sums run in a fixed order: there are no atomic operations.
"""

import triton
import triton.language as tl

from dspodfl._kernels.cuda._conv import _first_maximum, _nearest


@triton.jit
def _over_groups(value, GROUP: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sums over each group of channels, for every channel of it."""
    total = tl.sum(tl.reshape(value, (BLOCK_C // GROUP, GROUP)), axis=1)
    return tl.reshape(tl.broadcast_to(total[:, None], (BLOCK_C // GROUP, GROUP)), (BLOCK_C,))


@triton.jit
def _block(pointer, start, p, c, pixels, channels):
    """A block of pixels and channels, and which of them exist."""
    inside = (start + p < pixels)[:, None] & (c < channels)[None, :]
    at = (start + p)[:, None] * channels + c[None, :]
    return tl.load(pointer + at, mask=inside, other=0.0).to(tl.float32), inside, at


@triton.jit
def _scaled(value, mean, scale, weights, biases, c, channels, AFFINE: tl.constexpr):
    out = (value - mean[None, :]) * scale[None, :]
    if AFFINE:
        w = tl.load(weights + c, mask=c < channels, other=0.0)
        b = tl.load(biases + c, mask=c < channels, other=0.0)
        out = out * w[None, :] + b[None, :]
    return out


@triton.jit
def forward(  # noqa: PLR0915
    x,
    out,
    code,
    stats,
    theta,
    index,
    theta_client,
    weight,
    bias,
    images,
    height,
    width,
    channels,
    eps,
    INDEXED: tl.constexpr,
    AFFINE: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    TF32: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Normalized channels, scaled and shifted, with ReLU and pooling; mean and 1 / deviation of each one's group."""
    image = tl.program_id(0).to(tl.int64)
    client = image // images
    owner = tl.load(index + client) if INDEXED else client
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.arange(0, BLOCK_P)
    pixels = height * width
    x += image * pixels * channels
    # Each thread adds up its own pixels; threads are added up once.
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for start in range(0, pixels, BLOCK_P):
        value, _, _ = _block(x, start, p, c, pixels, channels)
        total += value
    mean = _over_groups(tl.sum(total, axis=0), GROUP, BLOCK_C) / (pixels * GROUP)
    total = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for start in range(0, pixels, BLOCK_P):
        value, inside, _ = _block(x, start, p, c, pixels, channels)
        away = tl.where(inside, value - mean[None, :], 0.0)
        total += away * away
    scale = 1 / tl.sqrt(_over_groups(tl.sum(total, axis=0), GROUP, BLOCK_C) / (pixels * GROUP) + eps)
    stats += image * 2 * channels
    tl.store(stats + c, mean, mask=c < channels)
    tl.store(stats + channels + c, scale, mask=c < channels)

    weights = theta + owner * theta_client + weight
    biases = theta + owner * theta_client + bias
    if POOL:
        half_width = width // 2
        windows = (height // 2) * half_width
        out += image * windows * channels
        code += image * windows * channels
        for start in range(0, windows, BLOCK_P):
            q = start + p
            corner = (q // half_width) * 2 * width + (q % half_width) * 2
            inside = (q < windows)[:, None] & (c < channels)[None, :]
            best = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
            place = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.int32)
            for window in tl.static_range(4):
                pixel = corner + (window // 2) * width + window % 2
                value = tl.load(x + pixel[:, None] * channels + c[None, :], mask=inside, other=0.0).to(tl.float32)
                value = _scaled(value, mean, scale, weights, biases, c, channels, AFFINE)
                if window == 0:
                    best = value
                else:
                    here = tl.full((BLOCK_P, BLOCK_C), window, dtype=tl.int32)
                    best, place = _first_maximum(best, place, value, here)
            if RELU:
                place = tl.where(best <= 0, 4, place)
                best = tl.where(best <= 0, 0.0, best)
            if TF32:
                best = _nearest(best)
            at = q[:, None] * channels + c[None, :]
            tl.store(out + at, best.to(out.dtype.element_ty), mask=inside)
            tl.store(code + at, place.to(tl.int8), mask=inside)
    else:
        out += image * pixels * channels
        for start in range(0, pixels, BLOCK_P):
            value, inside, at = _block(x, start, p, c, pixels, channels)
            value = _scaled(value, mean, scale, weights, biases, c, channels, AFFINE)
            if RELU:
                value = tl.where(value <= 0, 0.0, value)
            if TF32:
                value = _nearest(value)
            tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward(
    grad,
    x,
    stats,
    theta,
    index,
    out,
    sums,
    theta_client,
    weight,
    images,
    pixels,
    channels,
    INDEXED: tl.constexpr,
    AFFINE: tl.constexpr,
    INPUTS: tl.constexpr,
    TF32: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Sums over pixels of gradients, and of these times normalized inputs; gradients with respect to the inputs."""
    image = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    p = tl.arange(0, BLOCK_P)
    x += image * pixels * channels
    grad += image * pixels * channels
    stats += image * 2 * channels
    mean = tl.load(stats + c, mask=c < channels, other=0.0)
    scale = tl.load(stats + channels + c, mask=c < channels, other=0.0)
    plains = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    alongs = tl.zeros((BLOCK_P, BLOCK_C), dtype=tl.float32)
    for start in range(0, pixels, BLOCK_P):
        value, _, _ = _block(x, start, p, c, pixels, channels)
        s, _, _ = _block(grad, start, p, c, pixels, channels)
        plains += s
        alongs += s * (value - mean[None, :]) * scale[None, :]
    plain = tl.sum(plains, axis=0)
    along = tl.sum(alongs, axis=0)
    sums += image * 2 * channels
    tl.store(sums + c, plain, mask=c < channels)
    tl.store(sums + channels + c, along, mask=c < channels)
    if INPUTS:
        w = tl.full((BLOCK_C,), 1.0, dtype=tl.float32)
        if AFFINE:
            client = image // images
            owner = tl.load(index + client) if INDEXED else client
            w = tl.load(theta + owner * theta_client + weight + c, mask=c < channels, other=0.0)
        plain = _over_groups(plain * w, GROUP, BLOCK_C) / (pixels * GROUP)
        along = _over_groups(along * w, GROUP, BLOCK_C) / (pixels * GROUP)
        out += image * pixels * channels
        for start in range(0, pixels, BLOCK_P):
            value, inside, at = _block(x, start, p, c, pixels, channels)
            s, _, _ = _block(grad, start, p, c, pixels, channels)
            unit = (value - mean[None, :]) * scale[None, :]
            result = (s * w[None, :] - plain[None, :] - unit * along[None, :]) * scale[None, :]
            if TF32:
                result = _nearest(result)
            tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)
