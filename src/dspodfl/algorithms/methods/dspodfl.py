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
    update="Θ ← PΘ − αVG(Θ)",
    when="Devices and links are uneven or unreliable, and a good model is wanted at little delay. Where clients hold "
    "different data, it goes to the minimizer that busy clients pull it to: take inverse_rates, or an exact method.",
)
