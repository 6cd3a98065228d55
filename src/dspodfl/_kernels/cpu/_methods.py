# mypy: ignore-errors
"""The compiled code behind `dspodfl._kernels.cpu.methods`; importing this module imports Numba.

An iteration of a method has phases: what a client does in one of them needs rows of other clients only as an earlier
phase left them. Models are in two buffers. A client changes its own row in place where no other reads it, and goes to
the other buffer where its links fire: `turn` says in which of the two it is.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from dspodfl._kernels.cpu import _linear
from dspodfl._kernels.cpu._cache import cached
from dspodfl._kernels.cpu._linear import (
    _add,
    _at,
    _bare,
    _claim,
    _compile,
    _mix_columns,
    _negative_gradients,
    _read_counter,
    _update,
    _wait,
    _Work,
)

METHODS = ("gradient", "mix", "diging", "atc", "aug_dgm", "corrected")
"""What `work` computes; `dspodfl._kernels.cpu.methods` has the formulas."""
_GRADIENT, _MIX, _DIGING, _ATC, _AUG_DGM, _CORRECTED = range(len(METHODS))
PHASES = (1, 1, 2, 2, 3, 2)
"""Phases of an iteration of each method."""

_Method = namedtuple("_Method", "kind carried held fires turn lr factor s row")


@_compile
def _gradient(w, m, t, n, n_next, own, step):
    """Minus the gradients of client n with respect to its scores, times a step, into the scratch."""
    batch = w.rows[t, w.batch_of[n]]
    soon = batch[:0]
    if n_next >= 0 and m.fires[t, n_next]:
        soon = w.rows[t, w.batch_of[n_next]]
    none, one = np.int64(0), np.int64(1)
    _negative_gradients(w, own, w.theta.shape[1] // w.s.shape[0], batch, soon, step, none, one)


@_compile
def _apply(w, out, own, keep, count):
    """Add to keep · own, and to `count` listed rows, what the scratch has: a gradient times its step."""
    none, one = np.int64(0), np.int64(1)
    classes = w.s.shape[0]
    batch = np.int64(w.rows.shape[2])
    _update(w, out, own, classes, w.theta.shape[1] // classes, keep, count, batch, none, none, none, one)


@_compile
def _place(w, m, t, n):
    """Which row of the two buffers is client n's before iteration t."""
    return m.turn[t, n] * m.turn.shape[1] + n


@_compile
def _list(w, m, t, n, rows, share):
    """List the neighbours whose links fire, and their weights times a share; their number, and what is left of 1."""
    count = np.int64(0)
    one = w.s.dtype.type(1)
    total = w.s.dtype.type(0)
    wide = w.theta.shape[1] * w.s.itemsize
    for e in range(w.ptr[n], w.ptr[n + 1]):
        weight = w.active[t, w.link[e]]
        if weight != 0:
            w.neighbours[count] = rows + _place(w, m, t, w.col[e]) * wide
            w.weights[count] = share * weight
            total += share * weight
            count += 1
    return count, one - total


@_compile
def _sum(w, out, own, keep, count):
    """Keep · own + Σ weight · row over the listed rows."""
    none = np.int64(0)
    _mix_columns(w.s, out, own, none, w.theta.shape[1], keep, _at(w.neighbours), _at(w.weights), count)


@_compile
def _along(w, out, own, row, weight):
    """Own + weight · row."""
    w.neighbours[0] = row
    w.weights[0] = weight
    _sum(w, out, own, w.s.dtype.type(1), np.int64(1))


@_compile
def _gradient_only(w, m, t, n, n_next):
    """carried_n = step · ∇F_n(θ_n), or 0."""
    wide = w.theta.shape[1] * w.s.itemsize
    if m.fires[t, n]:
        own = _at(w.theta) + n * wide
        _gradient(w, m, t, n, n_next, own, -w.step[t, n])
        _apply(w, _at(m.carried) + n * wide, own, w.step[t, n] * w.l2, np.int64(0))
    else:
        for i in range(w.theta.shape[1]):
            m.carried[n, i] = 0


@_compile
def _mix_only(w, m, t, n):
    """carried_n = θ_n + Σ_j w_nj (θ_j − θ_n), less what carried_n was where it is taken off."""
    wide = w.theta.shape[1] * w.s.itemsize
    count, keep = _list(w, m, t, n, _at(w.theta), w.s.dtype.type(1))
    out = _at(m.carried) + n * wide
    if m.s != 0:
        w.neighbours[count] = out
        w.weights[count] = -m.s
        count += 1
    _sum(w, out, _at(w.theta) + n * wide, keep, count)


@_compile
def _track(w, m, t, n, n_next):
    """y_n ← y_n + (h⁺ − h), h⁺ the new gradient; atc: θ_n ← θ_n − α y_n. In place."""
    if not m.fires[t, n]:
        return
    wide = w.theta.shape[1] * w.s.itemsize
    place = _place(w, m, t, n)
    own, y = _at(w.theta) + place * wide, _at(m.carried) + place * wide
    one = w.s.dtype.type(1)
    _gradient(w, m, t, n, n_next, own, -one)
    _apply(w, _at(m.row), own, w.l2, np.int64(0))
    for i in range(w.theta.shape[1]):
        m.carried[place, i] += m.row[i] - m.held[n, i]
        m.held[n, i] = m.row[i]
    if m.kind == _ATC:
        _along(w, own, own, y, -w.step[t, n])


@_compile
def _spread(w, m, t, n):
    """Θ ← PΘ and Y ← PY, or one of them; diging: Θ ← PΘ − αVY."""
    wide = w.theta.shape[1] * w.s.itemsize
    place, after = _place(w, m, t, n) * wide, _place(w, m, t + 1, n) * wide
    own, y = _at(w.theta) + place, _at(m.carried) + place
    shift = _at(m.carried) - _at(w.theta)
    step = w.step[t, n]
    if place == after:
        if m.fires[t, n] and m.kind != _ATC:
            _along(w, own, own, y, -step)
        return
    count, keep = _list(w, m, t, n, _at(w.theta), w.s.dtype.type(1))
    more = np.int64(0)
    if m.fires[t, n] and m.kind == _DIGING:
        w.neighbours[count] = y
        w.weights[count] = -step
        more = np.int64(1)
    if m.kind != _AUG_DGM:
        _sum(w, _at(w.theta) + after, own, keep, count + more)
    for e in range(count):
        w.neighbours[e] += shift
    _sum(w, _at(m.carried) + after, y, keep, count)
    if m.fires[t, n] and m.kind == _AUG_DGM:
        _along(w, own, own, _at(m.carried) + after, -step)


@_compile
def _spread_models(w, m, t, n):
    """Θ ← PΘ."""
    wide = w.theta.shape[1] * w.s.itemsize
    place, after = _place(w, m, t, n) * wide, _place(w, m, t + 1, n) * wide
    if place != after:
        count, keep = _list(w, m, t, n, _at(w.theta), w.s.dtype.type(1))
        _sum(w, _at(w.theta) + after, _at(w.theta) + place, keep, count)


@_compile
def _correct(w, m, t, n, n_next):
    """θ_n ← θ_n − α(∇F_n(θ_n) − h_n), in place."""
    if not m.fires[t, n]:
        return
    wide = w.theta.shape[1] * w.s.itemsize
    own = _at(w.theta) + _place(w, m, t, n) * wide
    step = w.step[t, n]
    _gradient(w, m, t, n, n_next, own, step)
    w.neighbours[0] = _at(m.carried) + n * wide
    w.weights[0] = step
    _apply(w, own, own, w.s.dtype.type(1) - step * w.l2, np.int64(1))


@_compile
def _flow(w, m, t, n):
    """θ_n ← θ_n + s Σ_j w_nj (θ_j − θ_n),  h_n ← h_n + (s/α) Σ_j f_nj w_nj (θ_j − θ_n)."""
    wide = w.theta.shape[1] * w.s.itemsize
    place, after = _place(w, m, t, n) * wide, _place(w, m, t + 1, n) * wide
    if place == after:
        return
    own = _at(w.theta) + place
    count, keep = _list(w, m, t, n, _at(w.theta), m.s)
    _sum(w, _at(w.theta) + after, own, keep, count)
    share = m.s / m.lr[t, n]
    total = w.s.dtype.type(0)
    factors = min(t, m.factor.shape[0] - 1)
    at = np.int64(0)
    for e in range(w.ptr[n], w.ptr[n + 1]):
        link = w.link[e]
        if w.active[t, link] != 0:
            w.weights[at] = share * m.factor[factors, link] * w.active[t, link]
            total += w.weights[at]
            at += 1
    w.neighbours[at] = own
    w.weights[at] = -total
    h = _at(m.carried) + n * wide
    _sum(w, h, h, w.s.dtype.type(1), at + 1)


@_compile
def _settle(w, m, n):
    """Bring client n's rows to the first buffers."""
    last = m.turn.shape[0] - 1
    place = _place(w, m, last, n)
    if m.kind < _DIGING or place == n:
        return
    for i in range(w.theta.shape[1]):
        w.theta[n, i] = w.theta[place, i]
    if m.kind != _CORRECTED:
        for i in range(w.theta.shape[1]):
            m.carried[n, i] = m.carried[place, i]


@_compile
def _phase(w, m, t, phase, n, n_next):
    """Client n's part of a phase of iteration t; the next client of the phase is n', or −1."""
    if t == w.rows.shape[0]:
        _settle(w, m, n)
    elif m.kind == _GRADIENT:
        _gradient_only(w, m, t, n, n_next)
    elif m.kind == _MIX:
        _mix_only(w, m, t, n)
    elif m.kind == _CORRECTED:
        if phase == 0:
            _correct(w, m, t, n, n_next)
        else:
            _flow(w, m, t, n)
    elif phase == 0:
        _track(w, m, t, n, n_next)
    elif phase == 1:
        _spread(w, m, t, n)
    else:
        _spread_models(w, m, t, n)


def work(
    kind, phases, theta, carried, held, x, scale, shift, labels, targets, rows, batch_of, fires, step, lr, turn, ptr,
    col, link, active, factor, s, loss, l2, xs, scores, neighbours, weights, none, row, first, runs, clients, bounds,
    group, counters, me,
):  # fmt: skip
    """One thread's share of the work, run by run if any are given, else client by client.

    A thread may come late or never, since nothing is assigned: `counters` say what is claimed and how much is done.
    Returns how often it let other threads run while it waited.
    """
    w = _Work(
        _bare(theta), _bare(theta), _bare(x), scale, shift, _bare(labels), _bare(targets), _bare(rows),
        _bare(batch_of), _bare(step), _bare(ptr), _bare(col), _bare(link), _bare(active), loss, l2, False,
        _bare(xs), _bare(scores), _bare(neighbours), _bare(weights), _bare(none), _bare(none),
    )  # fmt: skip
    m = _Method(kind, _bare(carried), _bare(held), _bare(fires), _bare(turn), _bare(lr), _bare(factor), s, _bare(row))
    done = _at(counters)
    last = rows.shape[0] * phases + 1
    if runs.size > 0:
        while True:
            k = _add(done)
            if k >= runs.size:
                return 0
            begin, end = first[runs[k]], first[runs[k] + 1]
            for p in range(last):
                for n in range(begin, end):
                    _phase(w, m, p // phases, p % phases, n, n + 1 if n + 1 < end else -1)
    threads = bounds.size - 1
    yields = 0
    for p in range(last):
        for k in range(threads):  # its own clients, whose models are in its cache, and then those of other threads
            q = (me + k) % threads
            begin, end = bounds[q], bounds[q + 1]
            claimed = done + (q + 1) * counters.shape[1] * counters.itemsize
            tickets = -(-(end - begin) // group)
            while True:
                ticket = _read_counter(claimed)
                if ticket >= (p + 1) * tickets:
                    break
                if not _claim(claimed, ticket):
                    continue
                start = begin + (ticket - p * tickets) * group
                stop = min(start + group, end)
                for i in range(start, stop):
                    _phase(w, m, p // phases, p % phases, clients[i], clients[i + 1] if i + 1 < end else -1)
                    _add(done)
        yields += _wait(done, (p + 1) * clients.size)
    return yields


def turns(active, ptr, link, turn):
    """In which buffer each client's rows are before each iteration: they change it where one of its links fires."""
    for n in range(turn.shape[1]):
        turn[0, n] = 0
    for t in range(active.shape[0]):
        for n in range(turn.shape[1]):
            linked = False
            for e in range(ptr[n], ptr[n + 1]):
                linked = linked or active[t, link[e]] != 0
            turn[t + 1, n] = turn[t, n] ^ linked


work = cached(work, uses=_linear, error_model="numpy", boundscheck=False, nogil=True)
turns = cached(turns, error_model="numpy", boundscheck=False, nogil=True)
