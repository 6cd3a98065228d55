"""The compiled kernel: equal to the plain loop, and bitwise its own whatever surrounds a client."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspodfl._kernels.cpu import linear as compiled

pytestmark = pytest.mark.skipif(not compiled.available(), reason="needs Numba")

SAMPLES = 30
LOSSES = ("hinge", "cross_entropy", "squared_error")


def plain(theta, x, scale, shift, y, rows, batch_of, step, ptr, col, link, active, first, alive, loss, bias, l2):
    """The same iterations as they are written on paper."""
    inputs = (x.astype(np.float32) * np.float32(scale) + np.float32(shift)).astype(theta.dtype)
    if bias:
        inputs = np.hstack([inputs, np.ones((len(x), 1), theta.dtype)])
    going = np.flatnonzero(np.repeat(alive, np.diff(first)))
    for t in range(len(rows)):
        new = theta.copy()
        for n in going:
            edges = [e for e in range(ptr[n], ptr[n + 1]) if active[t, link[e]]]
            new[n] = (1 - sum(active[t, link[e]] for e in edges)) * theta[n]
            for e in edges:
                new[n] += active[t, link[e]] * theta[col[e]]
            if step[t, n]:
                row = rows[t, batch_of[n]]
                w = theta[n].reshape(-1, inputs.shape[1])
                grad = gradients(inputs[row] @ w.T, y[row], loss) / len(row)
                new[n] -= step[t, n] * (grad.T @ inputs[row]).ravel()
                if l2:
                    new[n] -= step[t, n] * theta.dtype.type(l2) * theta[n]
        theta = new
    return theta


def gradients(s, y, loss):
    if loss == "squared_error":
        return s - y[:, None]
    own = np.eye(s.shape[1], dtype=s.dtype)[y]
    if loss == "cross_entropy":
        e = np.exp(s - s.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True) - own
    on = (1 - s[np.arange(len(y)), y][:, None] + s > 0) * (1 - own)
    return (on - own * on.sum(1, keepdims=True)) / s.shape[1]


def world(seed, loss="hinge", dtype=np.float32, stored=np.uint8, bias=True, l2=0.0, classes=3, inputs=20, batch=5,
          sizes=(4,), iterations=3, steps=0.8, links=0.6):  # fmt: skip
    """Arguments of `advance`, but for `other` and `threads`: runs of so many clients on random graphs."""
    g = np.random.default_rng(seed)
    classes = 1 if loss == "squared_error" else classes
    first = np.concatenate([[0], np.cumsum(sizes)])
    n = int(first[-1])
    ptr, col, link, count = [0], [], [], 0
    for a, b in itertools.pairwise(first):
        number = np.triu(np.where(g.random((b - a, b - a)) < 0.6, 1, 0), 1)
        number[number > 0] = count + 1 + np.arange(number.sum())
        count += int((number > 0).sum())
        number += number.T
        for i in range(b - a):
            there = np.flatnonzero(number[i])
            col += list(a + there)
            link += list(number[i][there] - 1)
            ptr.append(len(col))
    x = (
        g.integers(0, 256, (SAMPLES, inputs)).astype(np.uint8)
        if stored is np.uint8
        else g.normal(size=(SAMPLES, inputs))
    )
    y = g.normal(size=SAMPLES).astype(np.float32) if loss == "squared_error" else g.integers(0, classes, SAMPLES)
    on = g.random((iterations, count)) < links
    return {
        "theta": (0.3 * g.normal(size=(n, classes * (inputs + bias)))).astype(dtype),
        "x": np.ascontiguousarray(x, stored),
        "scale": 0.017 if stored is np.uint8 else 0.9,
        "shift": -0.3,
        "y": y,
        "rows": g.integers(0, SAMPLES, (iterations, n, batch)),
        "batch_of": g.permutation(n),
        "step": np.where(g.random((iterations, n)) < steps, 0.1 * g.random((iterations, n)), 0).astype(dtype),
        "ptr": np.array(ptr), "col": np.array(col, int), "link": np.array(link, int),
        "active": np.where(on, g.random((iterations, count)) / 7, 0).astype(dtype),
        "first": first,
        "alive": np.ones(len(sizes), bool),
        "loss": loss, "bias": bias, "l2": l2,
    }  # fmt: skip


def advanced(w, threads=1):
    theta = w["theta"].copy()
    compiled.advance(**{**w, "theta": theta}, back_buffer=np.full_like(theta, np.nan), threads=threads)
    return theta


def part(w, start, stop):
    """Iterations start to stop − 1."""
    return {k: np.ascontiguousarray(v[start:stop]) if k in {"rows", "step", "active"} else v for k, v in w.items()}


def alone(w, r):
    """The arguments of run r alone."""
    a, b = w["first"][r : r + 2]
    e, f = w["ptr"][[a, b]]
    links, link = np.unique(w["link"][e:f], return_inverse=True)
    return {
        **w,
        "theta": w["theta"][a:b].copy(),
        "batch_of": w["batch_of"][a:b],
        "step": np.ascontiguousarray(w["step"][:, a:b]),
        "ptr": w["ptr"][a : b + 1] - e, "col": w["col"][e:f] - a, "link": link,
        "active": np.ascontiguousarray(w["active"][:, links]),
        "first": np.array([0, b - a]),
        "alive": w["alive"][r : r + 1],
    }  # fmt: skip


def close(got, want, dtype):
    return np.abs(got - want).max() <= (1e-12 if dtype is np.float64 else 1e-5) * max(1, np.abs(want).max())


@given(
    seed=st.integers(0, 999),
    loss=st.sampled_from(LOSSES),
    dtype=st.sampled_from([np.float32, np.float64]),
    stored=st.sampled_from([np.uint8, np.float32]),
    bias=st.booleans(),
    l2=st.sampled_from([0.0, 0.1]),
    classes=st.integers(1, 11),
    inputs=st.integers(1, 39),
    batch=st.integers(1, 17),
    n=st.integers(1, 7),
    iterations=st.integers(0, 4),
    threads=st.integers(1, 2),
)
def test_it_computes_what_the_plain_loop_computes(seed, dtype, n, threads, **shape):
    w = world(seed, dtype=dtype, sizes=(n,), **shape)
    assert close(advanced(w, threads), plain(**w), dtype)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("inputs", [784, 1023, 130])
def test_long_rows_equal_the_plain_loop(loss, inputs):
    w = world(1, loss, np.float64, inputs=inputs, classes=10, batch=16, l2=0.01)
    w["scale"] /= 10
    assert close(advanced(w), plain(**w), np.float64)


def test_a_product_is_exact_where_its_numbers_are():
    """Small whole numbers leave no room for rounding, so every index of every block must be right."""
    g = np.random.default_rng(0)
    for classes, inputs, batch in [
        (1, 1, 1),
        (2, 50, 2),
        (4, 63, 3),
        (5, 64, 4),
        (7, 129, 6),
        (8, 65, 8),
        (10, 784, 16),
    ]:
        w = world(2, "hinge", np.float32, classes=classes, inputs=inputs, batch=batch, steps=1, links=0)
        w |= {"scale": 1.0, "shift": 0.0, "x": g.integers(0, 4, w["x"].shape).astype(np.uint8)}
        w["theta"] = g.integers(-3, 4, w["theta"].shape).astype(np.float32)
        w["step"] = np.full_like(w["step"], batch * classes)
        want = plain(**{**w, "theta": w["theta"].astype(float)})
        assert np.array_equal(advanced(w), np.rint(want))


def test_inputs_are_rounded_as_numpy_rounds_them():
    """A gradient of one sample at zero weights is the input itself."""
    x = np.arange(256, dtype=np.uint8).reshape(1, 256)
    for stored in (x, np.sqrt(x, dtype=np.float32)):
        w = world(0, "squared_error", inputs=256, batch=1, sizes=(1,), iterations=1, bias=False)
        w |= {"theta": np.zeros((1, 256), np.float32), "x": stored, "y": np.ones(1, np.float32)}
        w |= {
            "rows": np.zeros((1, 1, 1), int),
            "step": np.ones((1, 1), np.float32),
            "scale": 1 / 255 / 0.353,
            "shift": -0.286 / 0.353,
        }
        want = stored.astype(np.float32) * np.float32(w["scale"]) + np.float32(w["shift"])
        assert np.array_equal(advanced(w), want)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("far", [False, True])
def test_threads_change_no_bit(loss, far, monkeypatch):
    monkeypatch.setattr(compiled, "_CACHED", 0 if far else compiled._CACHED)
    for sizes in [(7,), (3, 1, 6), (40,)]:
        w = world(3, loss, sizes=sizes, iterations=25, classes=10, inputs=70)
        want = advanced(w, 1)
        assert all(np.array_equal(advanced(w, threads), want) for threads in (2, 3, 8))


def test_distant_models_change_no_bit(monkeypatch):
    w = world(4, sizes=(60, 5), iterations=7, classes=7, inputs=99, l2=0.01)
    near = advanced(w)
    monkeypatch.setattr(compiled, "_CACHED", 0)
    assert np.array_equal(advanced(w), near)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_order_of_the_clients_changes_no_bit(threads, monkeypatch):
    from dspodfl._kernels.cpu import _linear

    w = world(15, sizes=(60, 5), iterations=5, classes=7, inputs=99)
    want = advanced(w)
    monkeypatch.setattr(compiled, "_CACHED", 0)
    for group in (1, 3000, 10**6):
        monkeypatch.setattr(compiled, "_GROUP", group)
        assert np.array_equal(advanced(w, threads), want)
    orders = [lambda clients: clients[::-1].copy(), np.random.default_rng(0).permutation]
    for order in orders:
        monkeypatch.setattr(_linear, "cluster", lambda ptr, col, clients, size, order=order: order(clients))
        assert np.array_equal(advanced(w, threads), want)


@given(seed=st.integers(0, 999), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4), size=st.integers(1, 9))
def test_groups_hold_each_client_asked_for_once(seed, sizes, size):
    from dspodfl._kernels.cpu import _linear

    w = world(seed, sizes=tuple(sizes))
    alive = np.random.default_rng(seed).random(len(sizes)) < 0.7
    clients = np.flatnonzero(np.repeat(alive, sizes))
    assert np.array_equal(np.sort(_linear.cluster(w["ptr"], w["col"], clients, size)), clients)


def test_groups_hold_neighbours():
    from dspodfl._kernels.cpu import _linear

    side, size = 20, 16
    i, j = np.divmod(np.arange(side**2), side)
    col = np.sort([i * side + (j + d) % side for d in (-1, 1)] + [(i + d) % side * side + j for d in (-1, 1)], axis=0).T
    ptr = 4 * np.arange(side**2 + 1)
    order = _linear.cluster(ptr, col.ravel().copy(), np.arange(side**2), size)
    group = np.empty(side**2, int)
    group[order] = np.arange(side**2) // size
    assert (group[col] == group[:, None]).mean() > 0.6


def test_frozen_runs_stay_as_they_are_where_models_are_distant(monkeypatch):
    monkeypatch.setattr(compiled, "_CACHED", 0)
    w = world(16, sizes=(9, 8, 7))
    moving = advanced(w)
    alive = np.array([True, False, True])
    got = advanced({**w, "alive": alive}, 2)
    assert np.array_equal(got, np.where(np.repeat(alive, [9, 8, 7])[:, None], moving, w["theta"]))


@given(seed=st.integers(0, 99), cut=st.integers(0, 9), threads=st.integers(1, 2))
def test_cutting_the_iterations_changes_no_bit(seed, cut, threads):
    w = world(seed, iterations=9, sizes=(5, 2), l2=0.1)
    halfway = {**part(w, cut, 9), "theta": advanced(part(w, 0, cut), threads)}
    assert np.array_equal(advanced(halfway, threads), advanced(w))


@given(seed=st.integers(0, 99), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4), threads=st.integers(1, 2))
def test_stacking_runs_changes_no_bit(seed, sizes, threads):
    w = world(seed, sizes=tuple(sizes), classes=6)
    together = np.split(advanced(w, threads), w["first"][1:-1])
    assert all(np.array_equal(advanced(alone(w, r)), together[r]) for r in range(len(sizes)))


@pytest.mark.parametrize("alive", [[True, False, True], [False, True, False], [False, False, False]])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_frozen_run_stays_as_it_is(alive, threads):
    w = world(5, sizes=(3, 4, 2))
    moving = advanced(w)
    going = np.repeat(alive, w["first"][1:] - w["first"][:-1])
    got = advanced({**w, "alive": np.array(alive)}, threads)
    assert np.array_equal(got, np.where(going[:, None], moving, w["theta"]))


def test_runs_may_share_their_minibatches():
    w = world(6, sizes=(3, 3))
    w["theta"][3:] = w["theta"][:3]
    w |= {"rows": w["rows"][:, :3].copy(), "batch_of": np.array([0, 1, 2, 0, 1, 2]), "active": 0 * w["active"]}
    w["step"][:, 3:] = w["step"][:, :3]
    got = advanced(w)
    assert np.array_equal(got[:3], got[3:]) and close(got, plain(**w), np.float32)


def test_rows_may_be_short_integers():
    w = world(7)
    assert np.array_equal(advanced({**w, "rows": w["rows"].astype(np.int32)}), advanced(w))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_client_without_a_step_reads_no_sample(loss):
    w = world(8, loss, stored=np.float32, iterations=1, sizes=(6,))
    w["rows"][:] = np.arange(6 * 5).reshape(1, 6, 5)
    w["batch_of"] = np.arange(6)
    idle = [1, 4]
    w["step"][:] = 0.1
    w["step"][:, idle] = 0
    want = advanced(w)
    for n in idle:
        w["x"][w["rows"][0, n]] = np.nan
    assert np.array_equal(advanced(w), want) and np.isfinite(want).all()


@pytest.mark.parametrize("far", [False, True])
def test_a_silent_link_carries_nothing(far, monkeypatch):
    monkeypatch.setattr(compiled, "_CACHED", 0 if far else compiled._CACHED)
    w = world(9, sizes=(7,), iterations=1, links=1)
    poisoned = 2
    of = np.repeat(np.arange(7), np.diff(w["ptr"]))
    w["active"][:, w["link"][(of == poisoned) | (w["col"] == poisoned)]] = 0
    want = advanced(w)
    w["theta"][poisoned] = np.nan
    got = advanced(w)
    others = np.arange(7) != poisoned
    assert np.array_equal(got[others], want[others]) and np.isnan(got[poisoned]).all()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_visible(loss, bad):
    w = world(10, loss, sizes=(3,), iterations=4, links=1)
    w["theta"][1, 3] = bad
    got, want = advanced(w), plain_quietly(w)
    assert np.array_equal(np.isfinite(got), np.isfinite(want)) and not np.isfinite(got[1]).all()
    assert np.array_equal(np.isnan(got), np.isnan(want))


def plain_quietly(w):
    with np.errstate(all="ignore"):
        return plain(**w)


def test_growth_without_bound_ends_in_what_is_not_finite():
    w = world(11, "squared_error", iterations=100, steps=1)
    w["step"] *= 1e4
    assert not np.isfinite(advanced(w)).any()


def test_it_leaves_the_other_arguments_alone():
    w = world(12, sizes=(3, 2))
    before = {k: np.copy(v) for k, v in w.items()}
    advanced(w, 2)
    assert all(np.array_equal(w[k], v) for k, v in before.items())


def test_strided_arrays_are_refused():
    w = world(13)
    with pytest.raises(ValueError, match="contiguous"):
        advanced({**w, "x": np.asfortranarray(w["x"])})


def test_importing_the_module_imports_no_numba():
    code = "import sys; import dspodfl._kernels.cpu.linear as c; c.available(); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_numba_it_says_so():
    code = "import sys; sys.modules['numba'] = None; import dspodfl._kernels.cpu.linear as c; assert not c.available()"
    subprocess.run([sys.executable, "-c", code], check=True)
