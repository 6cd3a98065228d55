# mypy: ignore-errors
"""The Triton side of `dspodfl._kernels.cuda.conv.weight_gradient`: sums over pixels, in a fixed order."""

import triton
import triton.language as tl


@triton.jit
def _held(value):
    """The same, by way of registers: from memory, tensor cores take float32 factors along the summed axis alone."""
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], tl.float32, is_pure=True, pack=1)


@triton.jit(do_not_specialize=["splits"])
def weight_product(  # noqa: PLR0915
    x,
    grad,
    theta,
    index,
    out,
    partial,
    x_client,
    x_image,
    x_row,
    x_pixel,
    x_channel,
    theta_client,
    out_client,
    weight,
    bias,
    penalty,
    rows,
    channels,
    out_channels,
    splits,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INDEXED: tl.constexpr,
    FLAT: tl.constexpr,
    SPLIT: tl.constexpr,
    PENALTY: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BF16: tl.constexpr,
    PRECISION: tl.constexpr,
    SWAP: tl.constexpr,
    HOLD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Gradients with respect to weights: sums over pixels, for a block of output channels (n) and of columns (k).

    A column is a kernel position and a channel. The last program of every block of output channels sums the gradients
    with respect to the pre-activations alone: those with respect to biases. ``FLAT``, if not 0, is the number of
    channels, and a block of k may cross kernel positions: no block divides them.
    """
    columns = 9 * channels
    tiles = tl.cdiv(columns, BLOCK_K)
    tile = tl.program_id(0) % (tiles + HAS_BIAS)
    n = (tl.program_id(0) // (tiles + HAS_BIAS)) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_inside = n < out_channels
    split = tl.program_id(1)
    client = tl.program_id(2).to(tl.int64)
    grad += client * rows * out_channels
    blocks = tl.cdiv(rows, BLOCK_M)
    first = (blocks * split) // splits
    last = (blocks * (split + 1)) // splits
    ms = tl.arange(0, BLOCK_M)
    grad_at = n[:, None] + ms[None, :] * out_channels
    owner = tl.load(index + client) if INDEXED else client
    partial += (split * tl.num_programs(2) + client) * (columns + 1) * out_channels

    if tile == tiles:
        totals = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
        for block in range(first, last):
            inside = (block * BLOCK_M + ms < rows)[None, :] & n_inside[:, None]
            totals += tl.load(grad + block * BLOCK_M * out_channels + grad_at, mask=inside, other=0.0).to(tl.float32)
        total = tl.sum(totals, axis=1)
        if SPLIT:
            tl.store(partial + columns * out_channels + n, total, mask=n_inside)
        else:
            if PENALTY:
                total += penalty * tl.load(theta + owner * theta_client + bias + n, mask=n_inside, other=0.0)
            tl.store(out + client * out_client + bias + n, total, mask=n_inside)
    else:
        x += client * x_client
        k = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        k_inside = k < columns
        if FLAT:
            position = k // FLAT
            c = k % FLAT
        else:
            position = tile // (channels // BLOCK_K)
            c = (tile % (channels // BLOCK_K)) * BLOCK_K
        dh = position // 3 - 1
        dw = position % 3 - 1
        shift = dh * x_row + dw * x_pixel + c * x_channel
        x_at = ms[:, None] * x_pixel + (tl.arange(0, BLOCK_K) * x_channel)[None, :]
        acc = tl.zeros((BLOCK_K, BLOCK_N) if SWAP else (BLOCK_N, BLOCK_K), dtype=tl.float32)
        for block in range(first, last):
            m = block * BLOCK_M + ms
            m_inside = m < rows
            h = (m // WIDTH) % HEIGHT
            w = m % WIDTH
            if FLAT:
                ih = (h[:, None] + dh[None, :]).to(tl.uint32)
                iw = (w[:, None] + dw[None, :]).to(tl.uint32)
                inside = (ih < HEIGHT) & (iw < WIDTH) & m_inside[:, None] & k_inside[None, :]
                at = (m // (HEIGHT * WIDTH)) * x_image + h * x_row + w * x_pixel
                pixels = tl.load(x + (at[:, None] + shift[None, :]), mask=inside, other=0.0)
            else:
                inside = ((h + dh).to(tl.uint32) < HEIGHT) & ((w + dw).to(tl.uint32) < WIDTH) & m_inside
                pixels = tl.load(x + (block * BLOCK_M * x_pixel + shift) + x_at, mask=inside[:, None], other=0.0)
            grads = tl.load(
                grad + block * BLOCK_M * out_channels + grad_at, mask=m_inside[None, :] & n_inside[:, None], other=0.0
            )
            if BF16:
                pixels = pixels.to(tl.bfloat16)
                grads = grads.to(tl.bfloat16)
            if HOLD % 2:
                grads = _held(grads)
            if HOLD // 2:
                pixels = _held(pixels)
            if SWAP:
                acc = tl.dot(tl.trans(pixels), tl.trans(grads), acc, input_precision=PRECISION)
            else:
                acc = tl.dot(grads, pixels, acc, input_precision=PRECISION)
        if SWAP:
            acc = tl.trans(acc)
        at = n[:, None] * columns + k[None, :]
        inside = n_inside[:, None] & k_inside[None, :]
        if SPLIT:
            tl.store(partial + at, acc, mask=inside)
        else:
            if PENALTY:
                acc += penalty * tl.load(theta + owner * theta_client + weight + at, mask=inside, other=0.0)
            tl.store(out + client * out_client + weight + at, acc, mask=inside)


@triton.jit(do_not_specialize=["splits"])
def weight_finish(
    partial,
    theta,
    index,
    out,
    theta_client,
    out_client,
    weight,
    bias,
    penalty,
    weights,
    count,
    stride,
    splits,
    INDEXED: tl.constexpr,
    PENALTY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Partial sums of `weight_product` added in their order: the first ``weights`` of ``count``, then biases."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    client = tl.program_id(1).to(tl.int64)
    partial += client * stride
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    parts = tl.num_programs(1).to(tl.int64) * stride
    for first in range(0, splits, 8):  # their loads are under way together
        for part in tl.static_range(8):
            acc += tl.load(partial + (first + part) * parts + i, mask=(i < count) & (first + part < splits), other=0.0)
    to = tl.where(i < weights, weight + i, bias + i - weights)
    if PENALTY:
        owner = tl.load(index + client) if INDEXED else client
        acc += penalty * tl.load(theta + owner * theta_client + to, mask=i < count, other=0.0)
    tl.store(out + client * out_client + to, acc, mask=i < count)
