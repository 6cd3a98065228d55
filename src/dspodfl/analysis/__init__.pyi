from . import aggregates as aggregates
from . import comparison as comparison
from . import figures as figures
from . import formatting as formatting
from . import median_run as median_run
from . import notebook as notebook
from . import statistics as statistics
from . import tables as tables
from .comparison import compare as compare
from .comparison import table as table
from .costs import Cost as Cost
from .costs import from_config as from_config
from .costs import parse as parse
from .metrics import COLUMNS as COLUMNS
from .metrics import DERIVED as DERIVED
from .metrics import INTEGERS as INTEGERS
from .metrics import METRICS as METRICS
from .metrics import NUMBERS as NUMBERS
from .metrics import SCHEMA as SCHEMA
from .metrics import Measures as Measures
from .metrics import MetricsRow as MetricsRow
from .metrics import Value as Value
from .metrics import complete as complete
from .statistics import Difference as Difference
from .statistics import Reached as Reached
from .statistics import Side as Side
from .summary import summarize as summarize
from .summary import whole_run as whole_run
from .tables import Column as Column
from .tables import Row as Row
from .tables import Table as Table

__all__ = [
    "COLUMNS",
    "DERIVED",
    "INTEGERS",
    "METRICS",
    "NUMBERS",
    "SCHEMA",
    "Column",
    "Cost",
    "Difference",
    "Measures",
    "MetricsRow",
    "Reached",
    "Row",
    "Side",
    "Table",
    "Value",
    "aggregates",
    "compare",
    "comparison",
    "complete",
    "figures",
    "formatting",
    "from_config",
    "median_run",
    "notebook",
    "parse",
    "statistics",
    "summarize",
    "table",
    "tables",
    "whole_run",
]
