"""The pictures of a run: their names, how they are drawn, in which formats, and what the report says of them.

To add a picture, add a `Picture` to `PICTURES`. The folder of a run, ``dspodfl show`` and the report follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dspodfl.study.result import Result


@dataclass(frozen=True)
class Picture:
    """A picture of a run.

    Attributes:
        name: of its files, without their ending.
        figure: draws it from a result: its metrics, clients, settings and summary.
        formats: the endings that it is written with; the report shows the last one.
        title: what it is of, from the title of the run.
        caption: what the report says below it.
    """

    name: str
    figure: Callable[[Result], Figure]
    formats: tuple[str, ...]
    title: str
    caption: str

    @property
    def files(self) -> tuple[str, ...]:
        """The names of its files."""
        return tuple(f"{self.name}.{form}" for form in self.formats)


PICTURES: tuple[Picture, ...] = (
    Picture(
        "accuracy_vs_delay",
        lambda result: result.plot(),
        ("png", "svg"),
        "{}",
        "Accuracy (in regression, the error) against delay.",
    ),
    Picture(
        "network",
        lambda result: result.plot_network(),
        ("png",),
        "network of {}",
        "The graph of the first seed: clients as dots, the larger the higher their SGD rate, and links between them.",
    ),
    # A new picture is added here.
)
"""What every run draws."""
