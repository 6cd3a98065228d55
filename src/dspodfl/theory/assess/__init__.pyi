from .advice import advice as advice
from .assessment import AlgorithmAssessment as AlgorithmAssessment
from .assessment import Assessment as Assessment
from .assessment import assess as assess
from .comparison import Comparison as Comparison
from .comparison import compare as compare
from .comparison import matching as matching
from .comparison import predicted as predicted
from .constants import ProblemConstants as ProblemConstants
from .constants import estimate as estimate
from .families import QUANTITIES as QUANTITIES
from .families import SOURCES as SOURCES
from .families import Condition as Condition
from .families import FamilyResult as FamilyResult
from .families import Quantity as Quantity
from .folder import check_record as check_record
from .folder import claim_folder as claim_folder
from .folder import write_folder as write_folder
from .grid import BOUND_COLUMNS as BOUND_COLUMNS
from .grid import BOUND_PANELS as BOUND_PANELS
from .grid import over_cells as over_cells
from .sporadicity import Sporadicity as Sporadicity
from .sporadicity import sporadicity as sporadicity

__all__ = [
    "BOUND_COLUMNS",
    "BOUND_PANELS",
    "QUANTITIES",
    "SOURCES",
    "AlgorithmAssessment",
    "Assessment",
    "Comparison",
    "Condition",
    "FamilyResult",
    "ProblemConstants",
    "Quantity",
    "Sporadicity",
    "advice",
    "assess",
    "check_record",
    "claim_folder",
    "compare",
    "estimate",
    "matching",
    "over_cells",
    "predicted",
    "sporadicity",
    "write_folder",
]
