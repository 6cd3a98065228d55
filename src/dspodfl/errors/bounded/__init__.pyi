from .depth import DEPTH as DEPTH
from .files import DATA as DATA
from .files import SHARE as SHARE
from .files import TEXT as TEXT
from .files import MissingFileError as MissingFileError
from .files import check as check
from .files import fits as fits
from .files import is_folder as is_folder
from .files import name_of as name_of
from .files import open_binary as open_binary
from .files import read_bytes as read_bytes
from .files import read_text as read_text
from .json import JSON as JSON
from .json import NestedError as NestedError
from .json import parse_json as parse_json
from .json import read_json as read_json
from .npz import Header as Header
from .npz import Npz as Npz
from .npz import open_npz as open_npz
from .npz import unpacked_size as unpacked_size
from .toml import TOML as TOML
from .toml import parse_toml as parse_toml
from .toml import read_toml as read_toml

__all__ = [
    "DATA",
    "DEPTH",
    "JSON",
    "SHARE",
    "TEXT",
    "TOML",
    "Header",
    "MissingFileError",
    "NestedError",
    "Npz",
    "check",
    "fits",
    "is_folder",
    "name_of",
    "open_binary",
    "open_npz",
    "parse_json",
    "parse_toml",
    "read_bytes",
    "read_json",
    "read_text",
    "read_toml",
    "unpacked_size",
]
