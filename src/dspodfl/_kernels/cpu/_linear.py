# mypy: ignore-errors
"""The compiled code behind `dspodfl._kernels.cpu.linear`; importing this module imports Numba.

The two products of a client, its scores W xᵀ and its gradient gradᵀ x (grad = ∂ℓ/∂s), are written in LLVM's vector
instructions, block by block. What is added to what, and in which order, is thus settled here and not by the optimizer:
a client's numbers depend on nothing that surrounds it. Each multiply-add is llvm.fmuladd, fused where the processor
can; no flag allows the optimizer to assume away NaN and infinity.

All of it is one file: Numba keeps compiled code by the date of its file, and of no other.
"""

from __future__ import annotations

import math
import platform
import sys
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from dspodfl._kernels.cpu._cache import cached

LOSSES = ("hinge", "cross_entropy", "squared_error")
_HINGE, _SQUARED_ERROR = LOSSES.index("hinge"), LOSSES.index("squared_error")
LINE = 64
"""Bytes of a cache line: the rows of the scratch, and the shared counters, begin at one."""
SAMPLES = 4
"""Samples of a block of scores; the scratch holds a multiple of it."""
_WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f", False))
_VECTOR = 64 if _WIDE else 32
_CLASSES = 5 if _WIDE else 2
"""Classes of a block: times four samples, or four vectors, plus their operands, they just fit the registers."""
_VECTORS = 4
"""Vectors of a tile of a model, side by side."""
_FETCH = 5
"""Cache lines prefetched at each step of a product, at most."""
_INNER = 16_000
"""Bytes of the models of a run that are mixed at a time: half of the innermost cache."""
_SPINS = 2000
"""Looks at a counter before a waiting thread lets others run."""

_INT = types.intp
_LONG = ir.IntType(64)
_SHORT = ir.IntType(32)
_POINTER = ir.PointerType()
_yield = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


class _Vectors:
    """Vector instructions on one type of numbers."""

    def __init__(self, builder: Any, element: Any) -> None:
        self.builder, self.element = builder, element
        self.size = 4 if isinstance(element, ir.FloatType) else 8
        self.lanes = _VECTOR // self.size
        self.type = ir.VectorType(element, self.lanes)
        self.zero = ir.Constant(self.type, [0.0] * self.lanes)

    def pointer(self, address: Any) -> Any:
        return self.builder.inttoptr(address, _POINTER)

    def at(self, pointer: Any, index: Any) -> Any:
        return self.builder.gep(pointer, [index], source_etype=self.element)

    def scalar(self, pointer: Any) -> Any:
        return self.builder.load(pointer, typ=self.element, align=self.size)

    def shuffle(self, a: Any, b: Any, lanes: list[int]) -> Any:
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_SHORT, len(lanes)), lanes))

    def spread(self, value: Any) -> Any:
        undefined = ir.Constant(ir.VectorType(value.type, self.lanes), ir.Undefined)
        return self.shuffle(self.builder.insert_element(undefined, value, _SHORT(0)), undefined, [0] * self.lanes)

    def first(self, count: Any) -> Any:
        """The mask of the first `count` lanes."""
        lanes = ir.Constant(ir.VectorType(_LONG, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", lanes, self.spread(count))

    def call(self, name: str, result: Any, args: list[Any]) -> Any:
        kind = ir.FunctionType(result, [arg.type for arg in args])
        name = f"llvm.{name}.v{self.lanes}f{8 * self.size}" + (".p0" if name.startswith("masked") else "")
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), args)

    def load(self, pointer: Any, mask: Any = None) -> Any:
        if mask is None:
            return self.builder.load(pointer, typ=self.type, align=self.size)
        return self.call("masked.load", self.type, [pointer, _SHORT(self.size), mask, self.zero])

    def store(self, value: Any, pointer: Any, mask: Any = None) -> None:
        if mask is None:
            self.builder.store(value, pointer, align=self.size)
        else:
            self.call("masked.store", ir.VoidType(), [value, pointer, _SHORT(self.size), mask])

    def multiply_add(self, a: Any, b: Any, total: Any) -> None:
        self.builder.store(self.call("fmuladd", self.type, [a, b, self.builder.load(total)]), total)

    def sums(self, four: list[Any]) -> Any:
        """The sum of each of four vectors, as a vector of four."""
        quads = range(0, self.lanes, 4)
        low, high = ([q + i + j * self.lanes for q in quads for i in (h, h + 1) for j in (0, 1)] for h in (0, 2))
        left, right = ([q + i + j * self.lanes for q in quads for j in (0, 1) for i in (h, h + 1)] for h in (0, 2))

        def merge(a: Any, b: Any, one: list[int], two: list[int]) -> Any:
            return self.builder.fadd(self.shuffle(a, b, one), self.shuffle(a, b, two))

        total = merge(merge(four[0], four[1], low, high), merge(four[2], four[3], low, high), left, right)
        lanes = self.lanes
        while lanes > 4:
            lanes //= 2
            total = merge(total, total, list(range(lanes)), list(range(lanes, 2 * lanes)))
        return total


def _prefetch_line(builder: Any, address: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [_POINTER, _SHORT, _SHORT, _SHORT])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(prefetch, [builder.inttoptr(address, _POINTER), _SHORT(0), _SHORT(2), _SHORT(1)])


def _prefetch_ahead(builder: Any, ahead: Any, stride: Any, step: Any) -> None:
    """At this step of a loop, prefetch the lines of the next `stride` bytes from `ahead` on; 0: nothing to prefetch."""
    with builder.if_then(builder.icmp_signed("!=", ahead, _LONG(0))):
        address = builder.add(ahead, builder.mul(stride, step))
        for line in range(_FETCH):
            with builder.if_then(builder.icmp_signed("<", _LONG(LINE * line), stride)):
                _prefetch_line(builder, builder.add(address, _LONG(LINE * line)))


def _scores(classes: int) -> Callable[..., None]:
    """The scores of four samples for ``classes`` classes: out[c, b] = Σ_f w[c, f] x[b, f]."""

    @intrinsic
    def scores(typing, like, x, x_row, w, w_row, out, out_row, ahead, stride):
        def code(context, builder, signature, args):
            _, x, x_row, w, w_row, out, out_row, ahead, stride = args
            v = _Vectors(builder, context.get_data_type(like.dtype))
            x, w, out = map(v.pointer, (x, w, out))
            samples = [v.at(x, builder.mul(x_row, _LONG(b))) for b in range(SAMPLES)]
            weights = [v.at(w, builder.mul(w_row, _LONG(c))) for c in range(classes)]
            totals = [[cgutils.alloca_once_value(builder, v.zero) for _ in samples] for _ in weights]

            def add(f, mask):
                inputs = [v.load(v.at(sample, f)) for sample in samples]
                for weight, row in zip(weights, totals, strict=True):
                    factor = v.load(v.at(weight, f), mask)
                    for value, total in zip(inputs, row, strict=True):
                        v.multiply_add(factor, value, total)

            whole = builder.and_(w_row, _LONG(-v.lanes))
            with cgutils.for_range_slice(builder, _LONG(0), whole, _LONG(v.lanes), _LONG) as (f, step):
                _prefetch_ahead(builder, ahead, stride, step)
                add(f, None)
            rest = builder.sub(w_row, whole)
            with builder.if_then(builder.icmp_signed(">", rest, _LONG(0))):
                add(whole, v.first(rest))
            for c, row in enumerate(totals):
                target = v.at(out, builder.mul(out_row, _LONG(c)))
                builder.store(v.sums([builder.load(total) for total in row]), target, align=v.size)
            return context.get_dummy_value()

        return types.void(like, *[_INT] * 8), code

    return scores


def _tile(classes: int, vectors: int, masked: bool) -> Callable[..., None]:
    """A tile of the new model: out = keep·θ + Σ_j weight_j θ_j + Σ_b grad[c, b] x[b, f], in this order."""

    @intrinsic
    def tile(
        typing, like, out, own, offset, row, keep, neighbours, weights, count, x, x_row, grad, grad_row, batch, rest,
        ahead, stride,
    ):  # fmt: skip
        def code(context, builder, signature, args):
            _, out, own, offset, row, keep, neighbours, weights, count = args[:9]
            x, x_row, grad, grad_row, batch, rest, ahead, stride = args[9:]
            v = _Vectors(builder, context.get_data_type(like.dtype))
            mask = v.first(rest) if masked else None
            out, own, neighbours, weights, x, grad = map(v.pointer, (out, own, neighbours, weights, x, grad))
            starts = [builder.add(offset, builder.mul(row, _LONG(c))) for c in range(classes)]
            spots = [[builder.add(start, _LONG(i * v.lanes)) for i in range(vectors)] for start in starts]
            share = v.spread(keep)
            cells = [
                [cgutils.alloca_once_value(builder, builder.fmul(share, v.load(v.at(own, s), mask))) for s in line]
                for line in spots
            ]
            with cgutils.for_range(builder, count, intp=_LONG) as loop:
                neighbour = builder.gep(neighbours, [loop.index], source_etype=_LONG)
                neighbour = v.pointer(builder.load(neighbour, typ=_LONG, align=8))
                weight = v.spread(v.scalar(v.at(weights, loop.index)))
                for line, totals in zip(spots, cells, strict=True):
                    for spot, total in zip(line, totals, strict=True):
                        v.multiply_add(weight, v.load(v.at(neighbour, spot), mask), total)
            with cgutils.for_range(builder, batch, intp=_LONG) as loop:
                _prefetch_ahead(builder, ahead, stride, loop.index)
                sample = v.at(x, builder.mul(x_row, loop.index))
                inputs = [v.load(v.at(sample, _LONG(i * v.lanes))) for i in range(vectors)]
                grads = v.at(grad, loop.index)
                for c, totals in enumerate(cells):
                    factor = v.spread(v.scalar(v.at(grads, builder.mul(grad_row, _LONG(c)))))
                    for value, total in zip(inputs, totals, strict=True):
                        v.multiply_add(factor, value, total)
            for line, totals in zip(spots, cells, strict=True):
                for spot, total in zip(line, totals, strict=True):
                    v.store(builder.load(total), v.at(out, spot), mask)
            return context.get_dummy_value()

        return types.void(like, *[_INT] * 4, like.dtype, *[_INT] * 11), code

    return tile


_scores_of_many, _scores_of_one = _scores(_CLASSES), _scores(1)
_tile_of_many, _tile_of_one = _tile(_CLASSES, _VECTORS, False), _tile(1, _VECTORS, False)
_edge_of_many, _edge_of_one = _tile(_CLASSES, 1, True), _tile(1, 1, True)


@intrinsic
def _bare(typing, array):
    """The array without its owner, whose references would be counted, atomically, at every call that passes it on."""

    def code(context, builder, signature, args):
        bare = context.make_array(array)(context, builder, args[0])
        bare.meminfo = ir.Constant(bare.meminfo.type, None)
        return bare._getvalue()

    return array(array), code


@intrinsic
def _prefetch(typing, address):
    """Prefetch a cache line."""

    def code(context, builder, signature, args):
        _prefetch_line(builder, args[0])
        return context.get_dummy_value()

    return types.void(_INT), code


@intrinsic
def _add(typing, address):
    """Add one to a shared counter, after all that was written before; gives the old count."""

    def code(context, builder, signature, args):
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _LONG.as_pointer()), _LONG(1), "seq_cst")

    return types.int64(_INT), code


@intrinsic
def _read_counter(typing, address):
    """A shared counter, before all that is read afterwards."""

    def code(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], _POINTER), "seq_cst", 8, typ=_LONG)

    return types.int64(_INT), code


@intrinsic
def _claim(typing, address, old):
    """Add one to a shared counter if it is `old`; whether it was."""

    def code(context, builder, signature, args):
        pointer = builder.inttoptr(args[0], _LONG.as_pointer())
        pair = builder.cmpxchg(pointer, args[1], builder.add(args[1], _LONG(1)), "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(_INT, types.int64), code


@intrinsic
def _pause(typing):
    """Tell the processor that this thread waits."""

    def code(context, builder, signature, args):
        if platform.machine() in {"x86_64", "AMD64"}:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), code


_Work = namedtuple(
    "_Work",
    "theta back_buffer x scale shift labels targets rows batch_of step ptr col link active loss l2 far "
    "xs s neighbours weights starts coming",
)


def _compile(function: Callable[..., Any]) -> Any:
    # called from compiled code alone: without its doors to Python it compiles faster
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(error_model="numpy", boundscheck=False, nogil=True, **options)(function)


@_compile
def _at(array):
    """The address of an array's first number."""
    return np.intp(array.ctypes.data)


@_compile
def _convert(x, row, scale, shift, out):
    """The inputs of one sample."""
    # without flags these two operations are never fused: the input is rounded as NumPy rounds it
    for f in range(x.shape[1]):
        out[f] = np.float32(x[row, f]) * scale + shift


@_compile
def _loss_gradients(s, labels, targets, batch, factor, loss):
    """Turn the scores s[c, b] of a minibatch into minus the gradients of the loss with respect to them."""
    classes = s.shape[0]
    one, zero = s.dtype.type(1), s.dtype.type(0)
    for b in range(batch.size):
        if loss == _SQUARED_ERROR:
            s[0, b] = factor * (s.dtype.type(targets[batch[b]]) - s[0, b])
            continue
        label = labels[batch[b]]
        if loss == _HINGE:
            # Without branches, which would be guessed wrong half of the time: the label counts like the other
            # classes, and is taken off again.
            own = s[label, b]
            count = zero - (one if one - own + own > zero else zero)
            for c in range(classes):
                on = one if one - own + s[c, b] > zero else zero
                count += on
                s[c, b] = -factor * on
            s[label, b] = factor * count
        else:
            top = s[0, b]
            for c in range(1, classes):
                top = max(top, s[c, b])
            total = zero
            for c in range(classes):
                s[c, b] = math.exp(s[c, b] - top)
                total += s[c, b]
            for c in range(classes):
                s[c, b] *= -factor / total
            s[label, b] += factor


@_compile
def _pace(w, classes, row, comes):
    """Lines to prefetch at a step, so that the next rows are prefetched throughout, and not faster than they arrive."""
    lanes = _VECTOR // w.s.itemsize
    steps = -(-classes // _CLASSES) * w.rows.shape[2] * (row // lanes // SAMPLES + -(-row // (_VECTORS * lanes)))
    lines = -(-comes * w.theta.shape[1] * w.s.itemsize // LINE)
    return min(max(-(-lines // max(steps, 1)), 1), _FETCH)


@_compile
def _span(coming, comes, which, spot, wide, steps, lines):
    """The next stretch of the next rows to prefetch in a loop of ``steps`` steps, and where the one after begins."""
    if which == comes or steps == 0:
        return 0, 0, which, spot
    length = -(-wide // (-(-wide // (steps * lines * LINE))))
    ahead = coming[which] + spot
    spot += length
    if spot >= wide:
        which, spot = which + 1, 0
    return ahead, -(-length // steps), which, spot


@_compile
def _update(w, out, own, classes, row, keep, count, batch, comes, which, spot, lines):
    """The new model, tile by tile, of the old one, `count` neighbours and `batch` samples."""
    s = w.s
    size = s.itemsize
    lanes = _VECTOR // size
    wide = w.theta.shape[1] * size
    neighbours, weights = _at(w.neighbours), _at(w.weights)
    x, x_row = _at(w.xs), w.xs.shape[1]
    grads, s_row = _at(s), s.shape[1]
    f = 0
    while f < row:
        whole = f + _VECTORS * lanes <= row
        rest = row - f
        x_here = x + f * size
        c = 0
        while c < classes:
            here = c * row + f
            grad = grads + c * s_row * size
            many = c + _CLASSES <= classes
            go, by, which, spot = _span(w.coming, comes, which, spot, wide, batch, lines)
            mixing = (here, row, keep, neighbours, weights, count)
            product = (x_here, x_row, grad, s_row, batch, rest, go, by)
            args = mixing + product
            if whole and many:
                _tile_of_many(s, out, own, *args)
            elif whole:
                _tile_of_one(s, out, own, *args)
            elif many:
                _edge_of_many(s, out, own, *args)
            else:
                _edge_of_one(s, out, own, *args)
            c += _CLASSES if many else 1
        f += _VECTORS * lanes if whole else lanes


@_compile
def _mix_columns(s, out, own, start, stop, keep, neighbours, weights, count):
    """Columns start to stop − 1 of the new model without its gradient, which `_update` then adds."""
    lanes = _VECTOR // s.itemsize
    f = start
    while f + _VECTORS * lanes <= stop:
        _tile_of_one(s, out, own, f, 0, keep, neighbours, weights, count, out, 0, out, 0, 0, 0, 0, 0)
        f += _VECTORS * lanes
    while f < stop:
        _edge_of_one(s, out, own, f, 0, keep, neighbours, weights, count, out, 0, out, 0, 0, stop - f, 0, 0)
        f += lanes


@_compile
def _negative_gradients(w, own, row, batch, soon, step, comes, lines):
    """Gather and convert a minibatch, its scores, and minus the gradients with respect to them, times the step."""
    s = w.s
    classes, s_row = s.shape
    size = s.itemsize
    lanes = _VECTOR // size
    width = w.x.shape[1] * w.x.itemsize
    x_row = w.xs.shape[1]
    wide = w.theta.shape[1] * size
    which, spot = np.int64(0), np.int64(0)
    for start in range(0, batch.size, SAMPLES):
        for b in range(start, min(start + SAMPLES, batch.size)):
            if b < soon.size:
                sample = _at(w.x) + soon[b] * width
                for line in range(0, width, LINE):
                    _prefetch(sample + line)
            _convert(w.x, batch[b], w.scale, w.shift, w.xs[b])
        x = _at(w.xs) + start * x_row * size
        c = 0
        while c < classes:
            weights = own + c * row * size
            out = _at(s) + (c * s_row + start) * size
            go, by, which, spot = _span(w.coming, comes, which, spot, wide, row // lanes, lines)
            if c + _CLASSES <= classes:
                _scores_of_many(s, x, x_row, weights, row, out, s_row, go, by)
                c += _CLASSES
            else:
                _scores_of_one(s, x, x_row, weights, row, out, s_row, go, by)
                c += 1
    factor = step / s.dtype.type(batch.size)
    if w.loss == _HINGE:
        factor /= s.dtype.type(classes)
    _loss_gradients(s, w.labels, w.targets, batch, factor, w.loss)
    return which, spot


@_compile
def _links(w, now, t, n, at):
    """List the neighbours whose links fire, from place `at` on; their number, and the share that client n keeps."""
    count = 0
    total = now.dtype.type(0)
    for e in range(w.ptr[n], w.ptr[n + 1]):
        weight = w.active[t, w.link[e]]
        if weight != 0:
            w.neighbours[at + count] = _at(now) + w.col[e] * now.shape[1] * now.itemsize
            w.weights[at + count] = weight
            total += weight
            count += 1
    return count, now.dtype.type(1) - total - w.step[t, n] * w.l2


@_compile
def _mix(w, t, begin, end):
    """Mix a whole run, a few columns at a time: they stay in the innermost cache, where all clients find them."""
    now, new = (w.theta, w.back_buffer) if t % 2 == 0 else (w.back_buffer, w.theta)
    columns = now.shape[1]
    wide = columns * now.itemsize
    at = 0
    for n in range(begin, end):
        w.starts[n - begin] = at
        count, keep = _links(w, now, t, n, at + 1)
        w.weights[at] = keep
        at += count + 1
    w.starts[end - begin] = at
    tile = _VECTORS * _VECTOR // now.itemsize
    chunk = max(1, _INNER // ((end - begin) * tile * now.itemsize)) * tile
    for f in range(0, columns, chunk):
        for n in range(begin, end):
            at = w.starts[n - begin]
            count = w.starts[n - begin + 1] - at - 1
            if count:
                own, out = _at(now) + n * wide, _at(new) + n * wide
                stop = min(f + chunk, columns)
                neighbours = _at(w.neighbours) + (at + 1) * w.neighbours.itemsize
                weights = _at(w.weights) + (at + 1) * w.weights.itemsize
                _mix_columns(w.s, out, own, f, stop, w.weights[at], neighbours, weights, count)


@_compile
def _client(w, t, n, t_next, n_next, mixed):
    """Client n's iteration t, from one buffer to the other; t = T copies it to `theta`. Next come t', n'."""
    if t == w.rows.shape[0]:
        for i in range(w.theta.shape[1]):  # an assignment of slices would take seconds to compile
            w.theta[n, i] = w.back_buffer[n, i]
        return
    now, new = (w.theta, w.back_buffer) if t % 2 == 0 else (w.back_buffer, w.theta)
    columns = now.shape[1]
    wide = columns * now.itemsize
    own, out = _at(now) + n * wide, _at(new) + n * wide
    classes = w.s.shape[0]
    row = columns // classes
    step = w.step[t, n]
    one = now.dtype.type(1)

    none = np.int64(0)  # a plain 0 would have the callee compiled once more, for this constant
    comes = none
    if w.far and t_next == t:
        w.coming[0] = _at(now) + n_next * wide
        w.coming[1] = _at(new) + n_next * wide
        comes = 2
        for e in range(w.ptr[n_next], w.ptr[n_next + 1]):
            if w.active[t, w.link[e]] != 0:
                w.coming[comes] = _at(now) + w.col[e] * wide
                comes += 1

    lines = _pace(w, classes, row, comes)
    count, keep = _links(w, now, t, n, none)
    base = own
    size, which, spot = none, none, none
    if step != 0:
        batch = w.rows[t, w.batch_of[n]]
        soon = batch[:0]
        if t_next < w.rows.shape[0] and w.step[t_next, n_next] != 0:
            soon = w.rows[t_next, w.batch_of[n_next]]
        which, spot = _negative_gradients(w, own, row, batch, soon, step, comes, lines)
        size = batch.size
    if count and (mixed or w.far):
        if not mixed:  # whole rows in order: the processor then runs ahead in the memory
            _mix_columns(w.s, out, own, none, columns, keep, _at(w.neighbours), _at(w.weights), count)
        base, keep, count = out, one, 0
    if size or base == own:
        _update(w, out, base, classes, row, keep, count, size, comes, which, spot, lines)


@_compile
def _wait(counter, due):
    """Wait until a shared counter is at least `due`; how often other threads were let run meanwhile."""
    spins = 0
    while _read_counter(counter) < due:
        spins += 1
        if spins < _SPINS:
            _pause()
        else:
            _yield()
    return max(spins - _SPINS, 0)


def work(
    theta, back_buffer, x, scale, shift, labels, targets, rows, batch_of, step, ptr, col, link, active, loss, l2, far,
    xs, s, neighbours, weights, starts, coming, first, runs, clients, bounds, group, counters, me, end_in_theta,
):  # fmt: skip
    """One thread's share of the work, run by run if any are given, else client by client.

    A thread may come late or never, since nothing is assigned: `counters` say what is claimed and how much is done.
    Returns how often it let other threads run while it waited.
    """
    w = _Work(
        _bare(theta), _bare(back_buffer), _bare(x), scale, shift, _bare(labels), _bare(targets), _bare(rows),
        _bare(batch_of), _bare(step), _bare(ptr), _bare(col), _bare(link), _bare(active), loss, l2, far,
        _bare(xs), _bare(s), _bare(neighbours), _bare(weights), _bare(starts), _bare(coming),
    )  # fmt: skip
    last = rows.shape[0] + (rows.shape[0] % 2 if end_in_theta else 0)
    done = _at(counters)
    whole_runs = runs.size > 0
    if whole_runs:
        while True:
            k = _add(done)
            if k >= runs.size:
                return 0
            begin, end = first[runs[k]], first[runs[k] + 1]
            for t in range(last):
                if t < rows.shape[0]:
                    _mix(w, t, begin, end)
                for n in range(begin, end):
                    t_next, n_next = (t, n + 1) if n + 1 < end else (t + 1, begin)
                    _client(w, t, n, t_next, n_next, whole_runs)
    threads = bounds.size - 1
    yields = 0
    for t in range(last):
        for k in range(threads):  # its own clients, whose models are in its cache, and then those of other threads
            q = (me + k) % threads
            begin, end = bounds[q], bounds[q + 1]
            claimed = done + (q + 1) * counters.shape[1] * counters.itemsize
            tickets = -(-(end - begin) // group)
            while True:
                ticket = _read_counter(claimed)
                if ticket >= (t + 1) * tickets:
                    break
                if not _claim(claimed, ticket):
                    continue
                start = begin + (ticket - t * tickets) * group
                stop = min(start + group, end)
                for i in range(start, stop):
                    t_next, i_next = (t, i + 1) if i + 1 < end else (t + 1, begin)
                    _client(w, t, clients[i], t_next, clients[i_next], whole_runs)
                    _add(done)
        yields += _wait(done, (t + 1) * clients.size)
    return yields


def cluster(ptr, col, clients, size):
    """The clients in groups of neighbours: each begins next to an earlier one and grows by the most linked client."""
    order = np.empty(clients.size, np.int64)
    seen = np.empty(col.size + 1, np.int64)
    links = np.full(ptr.size - 1, -1)  # to the group that grows; less than 0: has its place already, or needs none
    links[clients] = 0
    placed, oldest, end, untried = 0, 0, 0, 0
    while placed < clients.size:
        begin = end
        for _ in range(min(size, clients.size - placed)):
            best, most = np.int64(-1), np.int64(0)
            for k in range(begin, end):
                if links[seen[k]] > most:
                    best, most = seen[k], links[seen[k]]
            while best < 0 and oldest < begin:
                if links[seen[oldest]] >= 0:
                    best = seen[oldest]
                oldest += 1
            while best < 0:
                if links[clients[untried]] >= 0:
                    best = clients[untried]
                untried += 1
            links[best] = -1
            order[placed] = best
            placed += 1
            for e in range(ptr[best], ptr[best + 1]):
                n = col[e]
                if links[n] == 0:
                    seen[end] = n
                    end += 1
                if links[n] >= 0:
                    links[n] += 1
        for k in range(begin, end):
            links[seen[k]] = min(links[seen[k]], 0)
    return order


work = cached(work, error_model="numpy", boundscheck=False, nogil=True)
cluster = cached(cluster, error_model="numpy", boundscheck=False, nogil=True)
