"""Sporadic Scaffnew: corrected local steps, where each client and each link fires by itself."""

from dspodfl.algorithms.corrections import FACTORS, S
from dspodfl.algorithms.entry import Entry, Setting

ENTRY = Entry(
    label="Sporadic Scaffnew",
    line="steps along the gradient less a correction that links carry; exact although clients and links are sporadic",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule="dspodfl.algorithms.corrections:ProxSkip",
    settings={
        "s": S,
        "factor": Setting(
            line="how much a link's flow counts in the correction: its probability q, or the ratio min(1, q / max d)",
            allowed=f"one of {', '.join(FACTORS)}",
            check=lambda value: value in FACTORS,
        ),
    },
    reference="Mishchenko et al., ICML 2022; Condat and Richtárik, RandProx, ICLR 2023; with draws of clients, here",
    aliases=("sporadic proxskip",),
    order=22,
    exact=True,
    takes_local=False,
    update="Θ̂ = Θ − αV(G − h)\nΘ ← Θ̂ − s L Θ̂\nh ← h − (s/α) L_q Θ̂,  L_q: links count q_ij r_ij, not r_ij",
    when="As gradient tracking, at half of its traffic. Where links are rare and steps large, it takes long; "
    'factor = "ratio" is then faster. It goes beyond the published theorems, which have links of one probability and '
    "no draws of clients.",
)
