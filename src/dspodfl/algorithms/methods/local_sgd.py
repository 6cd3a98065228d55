"""Local SGD: steps of each client alone, and an average over all clients at every H-th iteration."""

from dspodfl.algorithms.checks import is_count, is_one_of
from dspodfl.algorithms.entry import Entry, Setting

AVERAGES = ("all", "neighbours")
AVERAGE = Setting(
    line="who averages: all clients, on the complete graph, or neighbours in [graph], with its weights",
    allowed="one of all, neighbours",
    check=is_one_of(AVERAGES),
)
PERIOD = Setting(
    line="H: an average after every H steps",
    allowed="an integer of at least 1",
    check=is_count(1),
)

ENTRY = Entry(
    label="Local SGD",
    line="H steps of each client, then an average of all models; not on [graph], unless average = 'neighbours'",
    schedule="dspodfl.algorithms.cycles:local_sgd",
    rule="dspodfl.algorithms.rules:adapt_then_combine",
    settings={"period": PERIOD, "average": AVERAGE},
    reference="Stich, ICLR 2019; Woodworth et al., ICML 2020; with neighbours: Wang and Joshi, Cooperative SGD, 2018",
    aliases=("periodic averaging",),
    sporadic=False,
    complete=lambda settings: settings.get("average", "all") == "all",
    order=40,
    update="Θ ← P(Θ − αG(Θ)),  P = 11ᵀ/n at every H-th iteration, else I",
    when="A yardstick with a perfect network: all clients meet at every H-th iteration, which counts as a use of the "
    "link of every pair. Local steps on different data drift apart, the more the larger H is. With neighbours it is "
    "periodic (cooperative) decentralized SGD.",
)
