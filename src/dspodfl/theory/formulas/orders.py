"""The orders of the bounds in K and α, in one place: what the paper compares, and what each term comes to."""

from __future__ import annotations

POWERS = {
    "koloskova": (1, 2),
    "dfedavg": (1, 2, 3),
    "dspodfl, d_min = 1": (1, 2),
    "dspodfl": (0, 1, 2),
}
"""Powers of α in the stationarity gap of each non-convex bound (appendix:remarks:rate_comparison).

The text says that d_min = 1 recovers DFedAvg's rate. The orders agree up to α²; but theorem:nonconvex takes the largest
ρ̃(k), and where DFedAvg computes without exchange ρ̃(k) = 1, so that the bound is empty for it.
"""

NONCONVEX = {
    "start": "O(1/(αK))",
    "spread": "O(1/K)",
    "drift": "O(α²)",
    "sporadic": "O(1 − d_min)",
    "noise": "O(α)",
}
"""Each term of theorem:nonconvex; its rate O(1/K) is that of the first two."""

DIMINISHING = {"printed": "O(ln K/√K)", "corrected": "O(1/√K) average error, O(1/K) consensus error"}
"""theorem:diminishing. The printed order is an upper bound on what the recursion of the same lemmas gives, which has no
logarithm."""

DIMINISHING_NONCONVEX = {"start": "O(1/√K)", "spread": "O(1/√K)", "drift": "O(1/√K)", "noise": "O(ln K/√K)"}
"""Each term of theorem:nonconvex_diminishing."""
