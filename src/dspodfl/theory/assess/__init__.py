"""The theory of a configuration: what `dspodfl.theory.formulas` says of the problem, graph and rates that a study would have."""

from dspodfl.theory.assess.assessment import Appraisal, Case, appraise
from dspodfl.theory.assess.comparison import Comparison, compare, matching
from dspodfl.theory.assess.constants import Knowledge, know
from dspodfl.theory.assess.families import Condition, Statement
from dspodfl.theory.assess.sporadicity import Sporadicity, sporadicity

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
