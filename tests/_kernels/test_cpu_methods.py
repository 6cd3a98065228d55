"""The compiled methods: equal to plain loops over clients, and bitwise their own whatever surrounds a client."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests._kernels.test_cpu_linear import close, gradients, world

from dspodfl._kernels.cpu import linear, methods

pytestmark = pytest.mark.skipif(not linear.available(), reason="needs Numba")

ITERATED = ("diging", "atc", "aug_dgm", "corrected")
STORED = {np.float32: np.uint8, np.float64: np.float32}


def made(seed, dtype=np.float64, **shape):
    """A world with what methods carry, and events of its iterations."""
    w = world(seed, dtype=dtype, stored=STORED[dtype], **shape)
    g = np.random.default_rng(seed)
    w["rows"] = w["rows"].astype(np.int32)
    n, (iterations, links) = len(w["theta"]), w["active"].shape
    w["fires"] = g.random((iterations, n)) < 0.6
    w["lr"] = (0.05 + 0.1 * g.random((iterations, n))).astype(dtype)
    w["step"] = (w["lr"] * w["fires"]).astype(dtype)
    w["carried"], w["held"] = (0.1 * g.normal(size=(2, *w["theta"].shape))).astype(dtype)
    w["factor"] = g.random((1 if seed % 2 else max(1, iterations), links)).astype(dtype)
    w["s"] = 0.7
    return w


def compiled(w):
    names = ("x", "scale", "shift", "y", "batch_of", "ptr", "col", "link", "first", "loss", "bias", "l2")
    theta = w["theta"]
    return methods.Methods(
        **{name: w[name] for name in names}, width=theta.shape[1], dtype=theta.dtype, batch=w["rows"].shape[2]
    )


def advanced(kind, w, threads=1):
    """Θ, what is carried and what is held after all iterations."""
    theta, carried = (np.concatenate([w[name], np.full_like(w[name], np.nan)]) for name in ("theta", "carried"))
    carried = w["carried"].copy() if kind == "corrected" else carried
    held = w["held"].copy()
    events = methods.Events(*(w[name] for name in ("rows", "fires", "step", "lr", "active")))
    compiled(w).advance(
        kind, theta, carried, held, events, factor=w["factor"], s=w["s"], alive=w["alive"], threads=threads
    )
    n = len(w["theta"])
    return theta[:n], carried[:n], held


def gradient(w, t, n, theta):
    """∇F_n(θ) on the minibatch of an iteration."""
    inputs = (w["x"].astype(np.float32) * np.float32(w["scale"]) + np.float32(w["shift"])).astype(theta.dtype)
    if w["bias"]:
        inputs = np.hstack([inputs, np.ones((len(inputs), 1), theta.dtype)])
    row = w["rows"][t, w["batch_of"][n]]
    grad = gradients(inputs[row] @ theta.reshape(-1, inputs.shape[1]).T, w["y"][row], w["loss"]) / len(row)
    return (grad.T @ inputs[row]).ravel() + theta.dtype.type(w["l2"]) * theta


def pulls(w, t, x, factor=None):
    """Σ_j f_nj w_nj (x_j − x_n) of every client, link by link."""
    out = np.zeros_like(x)
    for n in range(len(x)):
        for e in range(w["ptr"][n], w["ptr"][n + 1]):
            link = w["link"][e]
            f = 1 if factor is None else factor[min(t, len(factor) - 1), link]
            out[n] += f * w["active"][t, link] * (x[w["col"][e]] - x[n])
    return out


def plain(kind, w):
    """The same iterations as they are written on paper."""
    theta, carried, held = (w[name].copy() for name in ("theta", "carried", "held"))
    still = ~np.repeat(w["alive"], np.diff(w["first"]))
    for t in range(len(w["rows"])):
        before = theta.copy(), carried.copy(), held.copy()
        v, step = w["fires"][t], w["step"][t][:, None]
        if kind == "corrected":
            for n in np.flatnonzero(v):
                theta[n] -= step[n] * (gradient(w, t, n, theta[n]) - carried[n])
            carried += w["s"] * pulls(w, t, theta, w["factor"]) / w["lr"][t][:, None]
            theta = theta + w["s"] * pulls(w, t, theta)
        else:
            for n in np.flatnonzero(v):
                new = gradient(w, t, n, theta[n])
                carried[n] += new - held[n]
                held[n] = new
            y = carried + pulls(w, t, carried)
            if kind == "diging":
                theta = theta + pulls(w, t, theta) - step * carried
            else:
                theta = theta - step * (y if kind == "aug_dgm" else carried)
                theta = theta + pulls(w, t, theta)
            carried = y
        for now, old in zip((theta, carried, held), before, strict=True):
            now[still] = old[still]
    return theta, carried, held


@given(
    seed=st.integers(0, 999),
    kind=st.sampled_from(ITERATED),
    loss=st.sampled_from(("hinge", "cross_entropy", "squared_error")),
    dtype=st.sampled_from([np.float32, np.float64]),
    bias=st.booleans(),
    l2=st.sampled_from([0.0, 0.1]),
    classes=st.integers(1, 11),
    inputs=st.integers(1, 39),
    batch=st.integers(1, 17),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    iterations=st.integers(0, 5),
    threads=st.integers(1, 3),
)
@settings(max_examples=120, deadline=None)
def test_a_method_computes_what_its_plain_loop_computes(seed, kind, dtype, threads, sizes, **shape):
    w = made(seed, dtype, sizes=tuple(sizes), **shape)
    for got, want in zip(advanced(kind, w, threads), plain(kind, w), strict=True):
        assert close(got, want, dtype)


@pytest.mark.parametrize("kind", ITERATED)
def test_a_frozen_run_stays_as_it_is(kind):
    w = made(3, sizes=(4, 3, 5), iterations=6)
    w["alive"] = np.array([True, False, True])
    for got, want in zip(advanced(kind, w, 2), plain(kind, w), strict=True):
        assert close(got, want, np.float64) and np.array_equal(got[4:7], want[4:7])


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("kind", ITERATED)
def test_threads_change_no_bit(kind, far, monkeypatch):
    monkeypatch.setattr(linear, "_CACHED", 0 if far else linear._CACHED)
    for sizes in ((7,), (3, 1, 6), (30,)):
        w = made(4, np.float32, sizes=sizes, iterations=15, classes=10, inputs=70)
        want = advanced(kind, w, 1)
        for threads in (2, 3, 8):
            assert all(np.array_equal(a, b) for a, b in zip(advanced(kind, w, threads), want, strict=True))


@pytest.mark.parametrize("kind", ITERATED)
def test_cutting_the_iterations_changes_no_bit(kind):
    w = made(5, sizes=(5, 2), iterations=9, l2=0.1)
    want = advanced(kind, w)
    for cut in (1, 4, 8):
        parts = ("rows", "fires", "step", "lr", "active")
        first, rest = ({name: w[name][some] for name in parts} for some in (slice(0, cut), slice(cut, None)))
        theta, carried, held = advanced(kind, {**w, **first})
        state = {"theta": theta, "carried": carried, "held": held}
        assert all(np.array_equal(a, b) for a, b in zip(advanced(kind, {**w, **rest, **state}), want, strict=True))


@pytest.mark.parametrize("kind", ITERATED)
def test_without_events_nothing_changes_to_the_bit(kind):
    w = made(6, sizes=(4, 2), iterations=3)
    w["active"][:], w["fires"][:], w["step"][:] = 0, False, 0
    for got, name in zip(advanced(kind, w), ("theta", "carried", "held"), strict=True):
        assert np.array_equal(got, w[name])


@given(seed=st.integers(0, 999), dtype=st.sampled_from([np.float32, np.float64]), threads=st.integers(1, 2))
@settings(max_examples=40, deadline=None)
def test_gradients_and_mixed_rows_are_those_of_the_plain_loop(seed, dtype, threads):
    w = made(seed, dtype, sizes=(4, 3), iterations=2, l2=0.1 * (seed % 2))
    kernel, theta = compiled(w), w["theta"]
    out = np.full_like(theta, np.nan)
    scale = w["step"][1]
    kernel.gradient(theta, scale, w["rows"][1:], out, threads)
    want = np.stack([scale[n] * gradient(w, 1, n, theta[n]) for n in range(len(theta))])
    assert close(out, want, dtype) and not out[~w["fires"][1]].any()
    kernel.gradient(theta, None, w["rows"][1:], out, threads)
    assert close(out, np.stack([gradient(w, 1, n, theta[n]) for n in range(len(theta))]), dtype)
    kernel.mix(theta, w["active"][:1], out, False, threads)
    mixed = theta + pulls(w, 0, theta)
    assert close(out, mixed, dtype)
    less = w["carried"].copy()
    kernel.mix(theta, w["active"][:1], less, True, threads)
    assert close(less, mixed - w["carried"], dtype)


def test_what_stands_alone_is_shared_by_threads_to_the_bit(monkeypatch):
    w = made(7, np.float32, sizes=(9,), iterations=1, classes=10, inputs=70)
    kernel = compiled(w)
    found = []
    for least in (0, 10**12):
        monkeypatch.setattr(methods, "_ALONE", least)
        grad, mixed = np.empty_like(w["theta"]), np.empty_like(w["theta"])
        kernel.gradient(w["theta"], None, w["rows"], grad, 3)
        kernel.mix(w["theta"], w["active"], mixed, False, 3)
        found.append((grad, mixed))
    assert np.array_equal(found[0][0], found[1][0]) and np.array_equal(found[0][1], found[1][1])


def test_arrays_that_are_not_contiguous_are_refused():
    w = made(8, sizes=(3,))
    w["active"] = np.asfortranarray(np.repeat(w["active"], 2, axis=0))[::2]
    with pytest.raises(ValueError, match="C-contiguous"):
        advanced("diging", w)
