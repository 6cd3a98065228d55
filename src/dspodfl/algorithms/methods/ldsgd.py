"""LD-SGD: I₁ local steps, then I₂ steps with an exchange each."""

from dspodfl.algorithms.checks import is_count
from dspodfl.algorithms.entry import Entry, Setting

ENTRY = Entry(
    label="LD-SGD",
    line="I₁ steps of each client alone, then I₂ steps with an exchange between neighbours each",
    schedule="dspodfl.algorithms.cycles:ldsgd",
    rule="dspodfl.algorithms.rules:adapt_then_combine",
    settings={
        "local_steps": Setting(
            line="I₁, the steps without an exchange", allowed="an integer of at least 0", check=is_count(0)
        ),
        "gossip_steps": Setting(line="I₂, the steps with one", allowed="an integer of at least 1", check=is_count(1)),
    },
    reference="Li, Yang, Wang and Zhang, Communication-Efficient Local Decentralized SGD Methods, 2019",
    sporadic=False,
    order=41,
    update="Θ ← P(Θ − αG(Θ)),  P = I in I₁ iterations, then W in I₂",
    when="Links are slow and clients are fast: fewer exchanges, and several at a time to make models equal again.",
)
