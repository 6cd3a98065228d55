"""DFedAvg: D iterations of SGD without exchange, then one exchange without SGD."""

from typing import Any

from dspodfl.algorithms.entry import Entry, Setting, Style


def _is_period(value: Any) -> bool:
    return value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**32)


PERIOD = Setting(
    line="D, the SGD iterations between two exchanges",
    allowed="an integer of at least 1, or 'auto'",
    check=_is_period,
    key="train.dfedavg_period",
)

ENTRY = Entry(
    label="DFedAvg",
    line="D iterations of SGD, then one exchange; D = ⌈mean 1/d⌉ or train.dfedavg_period",
    schedule="dspodfl.algorithms.schedules:dfedavg",
    settings={"period": PERIOD},
    style=Style("#56B4E9", (0, (3, 1.5)), "v"),
    reference="Sun, Li and Wang, Decentralized Federated Averaging, 2022",
    paper=True,
    order=4,
    sporadic=False,
    update="Θ ← Θ − αG(Θ)    D times, then once\nΘ ← WΘ",
    when="Links are costly and clients alike. The longer D, the further clients drift apart between two exchanges.",
)
