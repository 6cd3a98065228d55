"""Post-local SGD: an average at every iteration at first, local SGD from iteration k₀ on."""

from dspodfl.algorithms.checks import is_count
from dspodfl.algorithms.entry import Entry, Setting
from dspodfl.algorithms.methods.local_sgd import AVERAGE, PERIOD

ENTRY = Entry(
    label="Post-local SGD",
    line="an average at every iteration until k₀, then local SGD; not on [graph], unless average = 'neighbours'",
    schedule="dspodfl.algorithms.cycles:post_local",
    rule="dspodfl.algorithms.rules:adapt_then_combine",
    settings={
        "start": Setting(
            line="k₀, the iteration from which clients take local steps",
            allowed="an integer of at least 0",
            check=is_count(0),
        ),
        "period": PERIOD,
        "average": AVERAGE,
    },
    reference="Lin, Stich, Patel and Jaggi, Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020",
    sporadic=False,
    complete=lambda settings: settings.get("average", "all") == "all",
    order=42,
    update="Θ ← P(Θ − αG(Θ)),  P = 11ᵀ/n until k₀ and at every H-th iteration from there on, else I",
    when="As local SGD, with models that are kept equal while they change fast.",
)
