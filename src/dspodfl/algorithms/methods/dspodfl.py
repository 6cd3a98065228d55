"""DSpodFL: clients step with their rates d_i, links exchange with their rates b_ij."""

from dspodfl.algorithms.entry import Entry, Style

ENTRY = Entry(
    label="DSpodFL",
    line="sporadic SGD (d) and sporadic exchange (b): the paper's method",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    style=Style("#D55E00", "-", "o"),
    reference="Zehtabi et al., Decentralized Sporadic Federated Learning",
    paper=True,
    order=0,
)
