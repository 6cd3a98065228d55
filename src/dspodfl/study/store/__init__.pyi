from . import checkpoint as checkpoint
from . import lock as lock
from . import metrics_log as metrics_log
from .checkpoint import CheckpointStore as CheckpointStore
from .checkpoint_writer import CheckpointWriter as CheckpointWriter
from .files import entry_of as entry_of
from .files import is_folder as is_folder
from .files import is_temporary as is_temporary
from .files import write as write
from .folder import CHECKPOINTS as CHECKPOINTS
from .folder import CLAIMED as CLAIMED
from .folder import COMPLETE as COMPLETE
from .folder import INTERRUPTED as INTERRUPTED
from .folder import MANIFEST as MANIFEST
from .folder import UNFINISHED as UNFINISHED
from .folder import DamagedError as DamagedError
from .folder import Folder as Folder
from .folder import ForeignFileError as ForeignFileError
from .folder import Loose as Loose
from .folder import Manifest as Manifest
from .folder import abandoned as abandoned
from .folder import claim as claim
from .folder import recognised_manifest as recognised_manifest
from .metrics_log import JOURNAL as JOURNAL
from .resume import Unfinished as Unfinished
from .resume import begun as begun
from .resume import compare_complete as compare_complete
from .resume import complete as complete
from .resume import other_place as other_place
from .rows import Rows as Rows
from .run_folder import CONFIG as CONFIG
from .run_folder import RunFolder as RunFolder
from .schemas import check_outcome as check_outcome

__all__ = [
    "CHECKPOINTS",
    "CLAIMED",
    "COMPLETE",
    "CONFIG",
    "INTERRUPTED",
    "JOURNAL",
    "MANIFEST",
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
    "check_outcome",
    "checkpoint",
    "claim",
    "compare_complete",
    "complete",
    "entry_of",
    "is_folder",
    "is_temporary",
    "lock",
    "metrics_log",
    "other_place",
    "recognised_manifest",
    "write",
]
