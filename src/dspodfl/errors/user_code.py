"""The only place where user code is imported: modules named by ``model.factory`` or ``algorithms``.

A name is ``"package.module:object"``. The module is loaded from the folder of the configuration if it is there, else
from the working directory, else as any installed module is; where one of these folders and an installed package both
have it, that is an error. ``sys.path`` stays as it is: a file of the user never takes the place of an installed module.
What a loaded file imports from its own folder is found after everything that is installed; a file there that is not
used for that reason is named in a warning. Modules of Python's own
library are refused before anything is imported.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

from dspodfl.errors import InputError, nearest
from dspodfl.errors.signals import Interrupted

_KINDS = {"model.factory": "function", "algorithms": "schedule"}
_STANDARD_LIBRARY = sys.stdlib_module_names | set(sys.builtin_module_names) | {"__main__"}
_folders: list[str] = []
_loaded: dict[str, str] = {}
"""Top-level modules that were loaded from one of the folders, and the file or folder of each."""


_examined: set[str] = set()
"""Files whose imports were compared with the files next to them."""


def folder_of(config: Path | None) -> Path:
    """Return the folder that is searched first for the modules of a configuration."""
    return Path(os.path.realpath(config)).parent if config is not None else Path.cwd()


def search(*folders: Path) -> None:
    """Search these folders too for modules of the user, after those that were given before."""
    for folder in map(str, folders):
        if folder not in _folders:
            _folders.append(folder)
    if not any(isinstance(finder, _SiblingFinder) for finder in sys.meta_path):
        sys.meta_path.append(_SiblingFinder())


def searched() -> tuple[Path, ...]:
    """Return the folders that are searched for modules of the user."""
    return tuple(map(Path, _folders))


def forget() -> None:
    """Search installed modules only."""
    _folders.clear()
    _examined.clear()


def load(name: str, field: str) -> Any:
    """Import a module and return the object of a name.

    Args:
        name: ``"package.module:object"``; the object may be an attribute of an attribute.
        field: The key of the configuration that has the name, for messages.

    Returns:
        The object.

    Raises:
        InputError: The name is none, is Python's own, is ambiguous, or importing it fails or ends the program.
    """
    module_name, attribute = check_name(name, field)
    try:
        with guarded(field, name, f"importable, but importing {module_name}"):
            module = _import(module_name, name, field)
    except InputError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        hint = "put it next to the configuration, install it, or add its folder to PYTHONPATH"
        raise InputError(field, name, f"{error.allowed} ({hint})") from error.__cause__
    found: Any = module
    for part in attribute.split("."):
        try:
            with guarded(field, name, f"a name that exists, but {part}"):
                found = getattr(found, part)
        except InputError as error:
            if not isinstance(error.__cause__, AttributeError):
                raise
            hint = nearest(part, [known for known in dir(found) if not known.startswith("_")])
            raise InputError(field, name, f"a name that exists, but {error.__cause__}{hint}") from error.__cause__
        _refuse_standard_library(found, name, field)
    return found


def check_name(name: str, field: str) -> tuple[str, str]:
    """Module and object of a name, without importing anything."""
    module_name, colon, attribute = str(name).partition(":")
    parts = [*module_name.split("."), *attribute.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise InputError(field, name, f'of the form "package.module:{_KINDS.get(field, "object")}"')
    if parts[0] in _STANDARD_LIBRARY:
        allowed = f"of a module of yours or of an installed package: {parts[0]} is part of Python"
        raise InputError(field, name, allowed)
    return module_name, attribute


def _refuse_standard_library(found: Any, name: str, field: str) -> None:
    """Nor may a module lead to what is refused by its own name: ``"package:os.system"``."""
    kinds = (ModuleType, type, FunctionType, BuiltinFunctionType, MethodType)
    module = found.__name__ if isinstance(found, ModuleType) else getattr(found, "__module__", None)
    top = str(module or "").partition(".")[0]
    if isinstance(found, kinds) and top in _STANDARD_LIBRARY - {"__main__"}:
        allowed = f"of a module of yours or of an installed package: it leads to {top}, which is part of Python"
        raise InputError(field, name, allowed)


@contextmanager
def guarded(field: str, value: object, what: str) -> Iterator[None]:
    """Turn whatever user code raises, ``sys.exit`` as well, into an `InputError`; a signal of the user passes.

    Args:
        field: The key of the configuration that names the code.
        value: Its value.
        what: What the value must be, up to the word "raised" or "ended": "importable, but importing m".

    Returns:
        A context manager for the call of the user's code.

    Raises:
        InputError: The code raised an exception or ended the program.

    >>> with guarded("model.factory", "m:f", "sound, but it"):
    ...     [].pop()
    Traceback (most recent call last):
    dspodfl.errors.base.InputError: model.factory = 'm:f': must be sound, but it raised IndexError: pop from empty list
    """
    try:
        yield
    except (Interrupted, InputError):
        raise
    except BaseException as cause:
        if type(cause) is KeyboardInterrupt and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise  # no handler of ours is installed: this is Ctrl-C itself
        if isinstance(cause, Exception):
            raise InputError(field, value, f"{what} raised {_in_words(cause)}") from cause
        raise InputError(field, value, f"{what} ended in {_in_words(cause)}") from cause


def _in_words(cause: BaseException) -> str:
    text = " ".join(str(cause).split())
    return f"{type(cause).__name__}: {text}" if text else type(cause).__name__


def where_user_code_raised(trace: TracebackType | None) -> str | None:
    """The innermost line of a loaded file in a traceback, ``"file:line"``, if there is one."""
    found = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        found = f"{file}:{trace.tb_lineno}" if _is_loaded(trace.tb_frame) else found
        trace = trace.tb_next
    return found


def _import(module_name: str, name: str, field: str) -> ModuleType:
    top = module_name.partition(".")[0]
    importlib.invalidate_caches()
    spec = _spec_in(_folders, top)
    if spec is None:
        return importlib.import_module(module_name)
    place, other = _place(spec), _elsewhere(top)
    if other is not None and not _is_same(place, _place(other)):
        if spec.origin is None:  # a folder that is no package, and happens to have the name of one
            return importlib.import_module(module_name)
        allowed = f"of a module that exists once: {top} is {place}, and {_place(other)} is installed; rename the first"
        raise InputError(field, name, allowed)
    if top in sys.modules and not _is_same(place, _place(getattr(sys.modules[top], "__spec__", None))):
        if top not in _loaded:
            known = _place(getattr(sys.modules[top], "__spec__", None))
            raise InputError(field, name, f"of a module that exists once: {top} is {place}, and {known} is loaded")
        for known in [one for one in sys.modules if one == top or one.startswith(f"{top}.")]:
            del sys.modules[known]
    if top not in sys.modules:
        _execute(spec, top)
    _loaded[top] = place
    module = importlib.import_module(module_name)
    for known in [one for one in sys.modules if "." in one and one.partition(".")[0] in _loaded]:
        _warn_of_hidden(getattr(sys.modules[known], "__file__", None))
    return module


def _execute(spec: ModuleSpec, top: str) -> None:
    module = importlib.util.module_from_spec(spec)
    sys.modules[top], _loaded[top] = module, _place(spec)
    _warn_of_hidden(spec.origin)
    try:
        if spec.loader is not None:
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(top, None)
        raise


def _warn_of_hidden(file: str | None) -> None:
    """Warn where a file imports a module that is installed, while a file of that name next to it may be meant."""
    if file is None or not file.endswith(".py") or file in _examined or os.environ.get("RANK", "0") != "0":
        return
    _examined.add(file)
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):  # importing it reports the problem
        return
    for name in sorted(set(_imported(tree)) - _loaded.keys()):
        sibling = _spec_in(_folders, name)
        if sibling is None or sibling.origin is None:
            continue
        known = sys.modules.get(name)
        used = _elsewhere(name) if known is None else getattr(known, "__spec__", None)
        if (known is None and used is None) or _is_same(_place(sibling), _place(used)):
            continue
        text = f"{_place(sibling)} is not used: {name}, which {file} imports, is {_place(used)}"
        warnings.warn(f"{text}; rename the first if it is meant", stacklevel=2)


def _imported(tree: ast.AST) -> Iterator[str]:
    """The top-level modules that a file imports by name, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _spec_in(folders: Sequence[str], top: str) -> ModuleSpec | None:
    """Where a module is in the first of some folders that has it; a folder without Python files is the last choice."""
    specs = [spec for folder in folders if (spec := PathFinder.find_spec(top, [folder])) is not None]
    return next((spec for spec in specs if spec.origin is not None), next(iter(specs), None))


def _elsewhere(top: str) -> ModuleSpec | None:
    """Where an installed module of this name is, the folders of the user left out."""
    searched = {os.path.realpath(folder) for folder in _folders}
    path = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) not in searched]
    spec = PathFinder.find_spec(top, path)
    for finder in sys.meta_path:
        if spec is None and finder is not PathFinder and not isinstance(finder, _SiblingFinder):
            spec = finder.find_spec(top, None)
    return spec if spec is None or spec.origin is not None else None


def _place(spec: ModuleSpec | None) -> str:
    if spec is None:
        return "a module without a file"
    return spec.origin or next(iter(spec.submodule_search_locations or []), spec.name)


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _is_loaded(frame: FrameType | None) -> bool:
    """Whether a frame is of a module that was loaded here, or of what such a module imported from its own folder."""
    name = str(frame.f_globals.get("__name__", "")) if frame is not None else ""
    return name.partition(".")[0] in _loaded


class _SiblingFinder:
    """Finds what loaded files import from their own folder, after everything else; for other importers nothing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if path is not None or "." in name or not _is_loaded(_importer()):
            return None
        spec = _spec_in(_folders, name)
        if spec is not None:
            _loaded[name] = _place(spec)
            _warn_of_hidden(spec.origin)
        return spec

    def invalidate_caches(self) -> None:
        """There are none."""


def _importer() -> FrameType | None:
    """The frame of the code that imports something."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and (
        frame.f_code.co_filename.startswith("<frozen importlib") or frame.f_globals.get("__name__") == "importlib"
    ):
        frame = frame.f_back
    return frame
