"""EXTRA: decentralized gradient descent with the correction that makes it exact, kept as a state."""

from dspodfl.algorithms.entry import Entry

ENTRY = Entry(
    label="EXTRA",
    line="decentralized gradient descent less a correction; exact although clients and links are sporadic",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule="dspodfl.algorithms.corrections:Extra",
    reference="Shi, Ling, Wu and Yin, SIAM J. Optim. 2015; sporadic with weights q r, here",
    order=23,
    exact=True,
    takes_local=False,
    update="Θ ← PΘ − αV(G − h)\nh ← h − (1/2α) L_q Θ,  L_q: links count q_ij r_ij, not r_ij",
    when="As sporadic Scaffnew, in the order of DGD: the model that is sent does not wait for the gradient. Where all "
    "fires it needs α < (1 + λ_min(W))/L.",
)
