from . import terminal as terminal
from .api import run as run
from .builder import build as build
from .collection import collected as collected
from .forecast import ADVICE as ADVICE
from .forecast import expected_seconds as expected_seconds
from .given_models import NodeModels as NodeModels
from .measurement import Hooks as Hooks
from .pictures import PICTURES as PICTURES
from .pictures import Picture as Picture
from .progress import Progress as Progress
from .progress import for_command as for_command
from .provenance import provenance as provenance
from .result import Result as Result
from .result_reader import read_config as read_config
from .result_reader import read_summary as read_summary
from .runner import measure as measure
from .session import Session as Session
from .session import SessionHooks as SessionHooks
from .session import Update as Update
from .session import open_folder as open_folder
from .simulation import Simulation as Simulation
from .store.events_file import replay as replay
from .study import Method as Method
from .study import Setting as Setting
from .study import Study as Study
from .study import joined as joined
from .tables import ordered as ordered
from .tables import parquet as parquet
from .tables import read_parquet as read_parquet
from .terminal import say as say
from .timing import Stopwatch as Stopwatch
from .timing import spent as spent
from .user_inputs import UserInputs as UserInputs
from .user_inputs import user_names as user_names
from .waves import Plan as Plan
from .waves import free_memory as free_memory
from .work_split import WorkSplit as WorkSplit
from .work_split import agreed as agreed
from .work_split import choose_split as choose_split
from .work_split import release_data as release_data
from .work_split import split_work as split_work

__all__ = [
    "ADVICE",
    "PICTURES",
    "Hooks",
    "Method",
    "NodeModels",
    "Picture",
    "Plan",
    "Progress",
    "Result",
    "Session",
    "SessionHooks",
    "Setting",
    "Simulation",
    "Stopwatch",
    "Study",
    "Update",
    "UserInputs",
    "WorkSplit",
    "agreed",
    "build",
    "choose_split",
    "collected",
    "expected_seconds",
    "for_command",
    "free_memory",
    "joined",
    "measure",
    "open_folder",
    "ordered",
    "parquet",
    "provenance",
    "read_config",
    "read_parquet",
    "read_summary",
    "release_data",
    "replay",
    "run",
    "say",
    "spent",
    "split_work",
    "terminal",
    "user_names",
]
