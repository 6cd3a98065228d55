from . import checkpoint as checkpoint
from . import lock as lock
from . import metrics_log as metrics_log
from .change import Loose as Loose
from .checkpoint import CheckpointStore as CheckpointStore
from .checkpoint_writer import CheckpointWriter as CheckpointWriter
from .claiming import abandoned as abandoned
from .claiming import claim as claim
from .files import entry_of as entry_of
from .files import is_folder as is_folder
from .files import is_temporary as is_temporary
from .files import write as write
from .folder import Folder as Folder
from .folder_reader import has_metrics_log as has_metrics_log
from .folder_reader import recognised_manifest as recognised_manifest
from .layout import CHECKPOINTS as CHECKPOINTS
from .layout import CLAIMED as CLAIMED
from .layout import COMPLETE as COMPLETE
from .layout import INTERRUPTED as INTERRUPTED
from .layout import MANIFEST as MANIFEST
from .layout import METRICS_LOG as METRICS_LOG
from .layout import METRICS_LOGS as METRICS_LOGS
from .layout import UNFINISHED as UNFINISHED
from .manifest import DamagedError as DamagedError
from .manifest import ForeignFileError as ForeignFileError
from .manifest import Manifest as Manifest
from .resume import Unfinished as Unfinished
from .resume import begun as begun
from .resume import compare_complete as compare_complete
from .resume import complete as complete
from .resume import other_place as other_place
from .rows import Rows as Rows
from .run_folder import CONFIG as CONFIG
from .run_folder import RunFolder as RunFolder
from .schemas import check_format as check_format
from .schemas import check_outcome as check_outcome

__all__ = [
    "CHECKPOINTS",
    "CLAIMED",
    "COMPLETE",
    "CONFIG",
    "INTERRUPTED",
    "MANIFEST",
    "METRICS_LOG",
    "METRICS_LOGS",
    "UNFINISHED",
    "CheckpointStore",
    "CheckpointWriter",
    "DamagedError",
    "Folder",
    "ForeignFileError",
    "Loose",
    "Manifest",
    "Rows",
    "RunFolder",
    "Unfinished",
    "abandoned",
    "begun",
    "check_format",
    "check_outcome",
    "checkpoint",
    "claim",
    "compare_complete",
    "complete",
    "entry_of",
    "has_metrics_log",
    "is_folder",
    "is_temporary",
    "lock",
    "metrics_log",
    "other_place",
    "recognised_manifest",
    "write",
]
