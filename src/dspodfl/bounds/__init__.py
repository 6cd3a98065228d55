"""The theory of a configuration: what `dspodfl.theory` says of the problem, graph and rates that a study would have."""

from dspodfl.bounds.appraisal import Appraisal, Case, appraise
from dspodfl.bounds.comparison import Comparison, compare, matching
from dspodfl.bounds.knowledge import Knowledge, know
from dspodfl.bounds.sporadicity import Sporadicity, sporadicity
from dspodfl.bounds.statement import Condition, Statement

__all__ = [
    "Appraisal",
    "Case",
    "Comparison",
    "Condition",
    "Knowledge",
    "Sporadicity",
    "Statement",
    "appraise",
    "compare",
    "know",
    "matching",
    "sporadicity",
]
