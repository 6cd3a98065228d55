# mypy: ignore-errors
"""The Triton side of `dspodfl._kernels.cuda.conv`, which imports this module only where there is Triton.

A 3×3 convolution is a matrix product whose left factor, the pixels' neighbourhoods, is never stored: one step takes a
block of channels of one kernel position, so that its addresses are those of the pixels plus one number. Shapes are
arguments, not constants, so that layers share compiled kernels. Sums run in a fixed order: there are no atomic
operations. Gradients with respect to weights, which are sums over pixels, are in
`dspodfl._kernels.cuda._conv_weight_grad`.
"""

import triton
import triton.language as tl

from dspodfl._kernels.triton_support import gdc_launch_dependents, gdc_wait


@triton.jit
def _first_maximum(value, place, other_value, other_place):
    """The larger of two, the first in scan order if they are equal; a NaN is larger than everything, as in PyTorch."""
    wins = (value > other_value) | ((value == other_value) & (place < other_place)) | (value != value)  # noqa: PLR0124 - NaN
    return tl.where(wins, value, other_value), tl.where(wins, place, other_place)


@triton.jit
def _nearest(value):
    """Rounded to what the tensor cores see of a float32, which they would cut off; NaN and infinity stay."""
    return tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [value], tl.float32, is_pure=True, pack=1)


@triton.jit
def _finish_forward(
    acc,
    out,
    code,
    biases,
    row,
    col,
    rows,
    out_channels,
    HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    TF32: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Bias, ReLU and pooling of a block of pre-activations; with pooling, four consecutive rows are one window."""
    n = col + tl.arange(0, BLOCK_N)
    if HAS_BIAS:
        acc += tl.load(biases + n, mask=n < out_channels, other=0.0)[None, :]
    if POOL:
        place = tl.broadcast_to(tl.arange(0, 4)[None, :, None], (BLOCK_M // 4, 4, BLOCK_N))
        value, place = tl.reduce((tl.reshape(acc, (BLOCK_M // 4, 4, BLOCK_N)), place), 1, _first_maximum)
        q = row // 4 + tl.arange(0, BLOCK_M // 4)
        at = q[:, None] * out_channels + n[None, :]
        inside = (q < rows // 4)[:, None] & (n < out_channels)[None, :]
        if RELU:
            place = tl.where(value <= 0, 4, place)
            value = tl.where(value <= 0, 0.0, value)
        if TF32:
            value = _nearest(value)
        tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)
        tl.store(code + at, place.to(tl.int8), mask=inside)
    else:
        m = row + tl.arange(0, BLOCK_M)
        if RELU:
            acc = tl.where(acc <= 0, 0.0, acc)
        if TF32:
            acc = _nearest(acc)
        at = m[:, None] * out_channels + n[None, :]
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=(m < rows)[:, None] & (n < out_channels)[None, :])


@triton.jit
def _finish_backward(
    acc,
    out,
    gate,
    row,
    col,
    rows,
    out_channels,
    height,
    width,
    full_height,
    full_width,
    GATE: tl.constexpr,
    TF32: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The backward pass through a layer's pooling and ReLU, as ``GATE`` says, for a block of its outputs."""
    m = row + tl.arange(0, BLOCK_M)
    n = col + tl.arange(0, BLOCK_N)
    at = m[:, None] * out_channels + n[None, :]
    inside = (m < rows)[:, None] & (n < out_channels)[None, :]
    if TF32:
        acc = _nearest(acc)
    if GATE == "pool":
        place = tl.load(gate + at, mask=inside, other=4)
        image = m // (height * width)
        h = (m // width) % height
        w = m % width
        corner = (image * full_height + 2 * h) * full_width + 2 * w
        for window in tl.static_range(4):
            to = (corner + (window // 2) * full_width + window % 2)[:, None] * out_channels + n[None, :]
            tl.store(out + to, tl.where(place == window, acc, 0.0).to(out.dtype.element_ty), mask=inside)
    else:
        if GATE == "relu":
            y = tl.load(gate + at, mask=inside, other=0.0)
            acc = tl.where(y <= 0, 0.0, acc)
        tl.store(out + at, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["height", "width", "full_height", "full_width", "splits"])
def product(  # noqa: PLR0915
    x,
    theta,
    index,
    out,
    code,
    partial,
    x_client,
    x_image,
    x_row,
    x_pixel,
    x_channel,
    theta_client,
    weight,
    bias,
    position_stride,
    map_stride,
    channel_stride,
    rows,
    height,
    width,
    channels,
    out_channels,
    full_height,
    full_width,
    out_client,
    code_client,
    splits,
    INDEXED: tl.constexpr,
    BACKWARD: tl.constexpr,
    FLAT: tl.constexpr,
    SPLIT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    GATE: tl.constexpr,
    TF32: tl.constexpr,
    BF16: tl.constexpr,
    PRECISION: tl.constexpr,
    SWAP: tl.constexpr,
    ROUND: tl.constexpr,
    EARLY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Sums over kernel positions and channels for a block of pixels (m) and output channels (n): forward, or backward.

    ``FLAT``, if not 0, is the number of channels, and positions and channels count as one axis: no block divides them.
    ``SWAP`` makes the weights the left factor. ``SPLIT`` leaves partial sums, which `finish` adds.
    """
    tiles = tl.cdiv(rows, BLOCK_M)
    row = (tl.program_id(0) % tiles) * BLOCK_M
    col = (tl.program_id(0) // tiles) * BLOCK_N
    split = tl.program_id(1)
    client = tl.program_id(2).to(tl.int64)
    x += client * x_client

    m = row + tl.arange(0, BLOCK_M)
    n = col + tl.arange(0, BLOCK_N)
    if POOL:
        q = m // 4
        half_width = width // 2
        half = (height // 2) * half_width
        image = q // half
        h = ((q % half) // half_width) * 2 + (m % 4) // 2
        w = (q % half_width) * 2 + m % 2
    else:
        image = m // (height * width)
        h = (m // width) % height
        w = m % width
    m_inside = m < rows
    n_inside = n < out_channels
    x_rows = image * x_image + h * x_row + w * x_pixel
    w_rows = n * map_stride
    blocks = channels // BLOCK_K
    steps = tl.cdiv(9 * FLAT, BLOCK_K) if FLAT else 9 * blocks
    first = (steps * split) // splits
    last = (steps * (split + 1)) // splits
    sign = -1 if BACKWARD else 1
    # Which kernel positions of a pixel are inside the image, a bit each: a shift in the loop, not four comparisons.
    bits = tl.zeros((BLOCK_M,), dtype=tl.int32)
    for t in tl.static_range(9):
        ih = h + sign * (t // 3 - 1)
        iw = w + sign * (t % 3 - 1)
        bits |= ((ih >= 0) & (ih < height) & (iw >= 0) & (iw < width) & m_inside).to(tl.int32) << t
    if EARLY:
        gdc_wait()
    owner = tl.load(index + client) if INDEXED else client
    theta += owner * theta_client
    theta_weights = theta + weight
    k = tl.arange(0, BLOCK_K)
    x_at = x_rows[:, None] + (k * x_channel)[None, :]
    w_at = w_rows[:, None] + (k * channel_stride)[None, :]

    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(first, last):
        if FLAT:
            c = (step * BLOCK_K + k) % FLAT
            position = (step * BLOCK_K + k) // FLAT
            shift = sign * ((position // 3 - 1) * x_row + (position % 3 - 1) * x_pixel) + c * x_channel
            inside = (((bits[:, None] >> position[None, :]) & 1) != 0) & (position < 9)[None, :]
            pixels = tl.load(x + (x_rows[:, None] + shift[None, :]), mask=inside, other=0.0)
            weights = tl.load(
                theta_weights + (w_rows[:, None] + (position * position_stride + c * channel_stride)[None, :]),
                mask=n_inside[:, None] & (position < 9)[None, :],
                other=0.0,
            )
        else:
            position = step // blocks
            c = (step % blocks) * BLOCK_K
            shift = sign * ((position // 3 - 1) * x_row + (position % 3 - 1) * x_pixel) + c * x_channel
            inside = ((bits >> position) & 1) != 0
            pixels = tl.load(x + shift + x_at, mask=inside[:, None], other=0.0)
            weights = tl.load(
                theta_weights + (position * position_stride + c * channel_stride) + w_at,
                mask=n_inside[:, None],
                other=0.0,
            )
        if BF16:
            pixels = pixels.to(tl.bfloat16)
            weights = weights.to(tl.bfloat16)
        if ROUND % 2:
            weights = _nearest(weights)
        if ROUND // 2:
            pixels = _nearest(pixels)
        if SWAP:
            acc = tl.dot(weights, tl.trans(pixels), acc, input_precision=PRECISION)
        else:
            acc = tl.dot(pixels, tl.trans(weights), acc, input_precision=PRECISION)
    if EARLY:
        gdc_launch_dependents()
    if SWAP:
        acc = tl.trans(acc)

    if SPLIT:
        partial += (split * tl.num_programs(2) + client) * rows * out_channels
        at = m[:, None] * out_channels + n[None, :]
        tl.store(partial + at, acc, mask=m_inside[:, None] & n_inside[None, :])
    elif BACKWARD:
        _finish_backward(
            acc,
            out + client * out_client,
            code + client * code_client,
            row,
            col,
            rows,
            out_channels,
            height,
            width,
            full_height,
            full_width,
            GATE,
            TF32,
            BLOCK_M,
            BLOCK_N,
        )
    else:
        _finish_forward(
            acc,
            out + client * out_client,
            code + client * code_client,
            theta + bias,
            row,
            col,
            rows,
            out_channels,
            HAS_BIAS,
            RELU,
            POOL,
            TF32,
            BLOCK_M,
            BLOCK_N,
        )


@triton.jit(do_not_specialize=["height", "width", "full_height", "full_width", "splits"])
def finish(
    partial,
    theta,
    index,
    out,
    code,
    theta_client,
    bias,
    rows,
    out_channels,
    height,
    width,
    full_height,
    full_width,
    out_client,
    code_client,
    splits,
    INDEXED: tl.constexpr,
    BACKWARD: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    RELU: tl.constexpr,
    POOL: tl.constexpr,
    GATE: tl.constexpr,
    TF32: tl.constexpr,
    EARLY: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Partial sums added in their order, then what follows the sum in `product`."""
    tiles = tl.cdiv(rows, BLOCK_M)
    row = (tl.program_id(0) % tiles) * BLOCK_M
    col = (tl.program_id(0) // tiles) * BLOCK_N
    client = tl.program_id(1).to(tl.int64)
    m = row + tl.arange(0, BLOCK_M)
    n = col + tl.arange(0, BLOCK_N)
    at = m[:, None] * out_channels + n[None, :]
    inside = (m < rows)[:, None] & (n < out_channels)[None, :]
    partial += client * rows * out_channels
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()
    stride = tl.num_programs(1).to(tl.int64) * rows * out_channels
    for first in range(0, splits, 4):  # four at a time: their loads are under way together
        for part in tl.static_range(4):
            here = partial + (first + part) * stride
            acc += tl.load(here + at, mask=inside & (first + part < splits), other=0.0).to(tl.float32)
    if BACKWARD:
        _finish_backward(
            acc,
            out + client * out_client,
            code + client * code_client,
            row,
            col,
            rows,
            out_channels,
            height,
            width,
            full_height,
            full_width,
            GATE,
            TF32,
            BLOCK_M,
            BLOCK_N,
        )
    else:
        owner = tl.load(index + client) if INDEXED else client
        _finish_forward(
            acc,
            out + client * out_client,
            code + client * code_client,
            theta + owner * theta_client + bias,
            row,
            col,
            rows,
            out_channels,
            HAS_BIAS,
            RELU,
            POOL,
            TF32,
            BLOCK_M,
            BLOCK_N,
        )


@triton.jit(do_not_specialize=["height", "width"])
def pool(x, out, code, cells, height, width, out_channels, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """2×2 maxima and where they were, of a block of windows and channels; ``x`` has clients and images as one axis."""
    tiles = tl.cdiv(cells, BLOCK_M)
    q = (tl.program_id(0) % tiles) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) // tiles) * BLOCK_N + tl.arange(0, BLOCK_N)
    half_width = width // 2
    half = (height // 2) * half_width
    corner = ((q // half).to(tl.int64) * height + ((q % half) // half_width) * 2) * width + (q % half_width) * 2
    inside = (q < cells)[:, None] & (n < out_channels)[None, :]
    value = tl.load(x + corner[:, None] * out_channels + n[None, :], mask=inside, other=0.0)
    place = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for window in tl.static_range(1, 4):
        pixel = corner + (window // 2) * width + window % 2
        other = tl.load(x + pixel[:, None] * out_channels + n[None, :], mask=inside, other=0.0)
        value, place = _first_maximum(value, place, other, tl.full((BLOCK_M, BLOCK_N), window, dtype=tl.int32))
    at = q.to(tl.int64)[:, None] * out_channels + n[None, :]
    tl.store(out + at, value, mask=inside)
    tl.store(code + at, place.to(tl.int8), mask=inside)
