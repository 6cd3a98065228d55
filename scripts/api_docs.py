"""Write docs/api.md, the reference of the Python interface, from the docstrings: ``python -m scripts.api_docs``.

    python -m scripts.api_docs            # write the page
    python -m scripts.api_docs --check    # is it current, and is every public name documented in full? (else exit 1)

What is public is what the ``__init__.pyi`` of a room lists in ``__all__``; `dspodfl` and `dspodfl.rng` list it in their
modules. Sources are parsed and never imported, so that no tensor is needed.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dspodfl"
PAGE = ROOT / "docs" / "api.md"
PRIVATE = {"_kernels"}
_HEAD = """\
# The Python interface

<!-- Made by python -m scripts.api_docs from the docstrings; do not edit. -->

Every public name, room by room. `import dspodfl` has what most programs need; the rooms have the rest. What a room does
not list here is private and may change at any time. How the rooms fit together: [architecture.md](architecture.md).
"""


@dataclass(frozen=True)
class Name:
    """A public name: where it is defined, how it is called, and what its docstring says."""

    room: str
    name: str
    kind: str
    signature: str
    doc: str | None
    members: tuple[Name, ...] = ()
    lacks: tuple[str, ...] = ()
    """Of a function: the parts of a docstring that are missing, such as ``Returns`` or ``Args: x``."""

    @property
    def full(self) -> str:
        """The dotted name."""
        return f"{self.room}.{self.name}"


@dataclass(frozen=True)
class Room:
    """A package or module that offers public names."""

    name: str
    doc: str | None
    names: tuple[Name, ...]


def rooms(package: Path = PACKAGE) -> list[Room]:
    """Give every public room of a package, the package itself first.

    Args:
        package: The folder of the package.
    """
    found = [_room(package / "__init__.py", package)]
    if (package / "rng.py").exists():
        found.append(_room(package / "rng.py", package))
    stubs = sorted(package.rglob("__init__.pyi"), key=lambda path: path.relative_to(package).parts)
    return found + [_room(stub, package) for stub in stubs if stub.relative_to(package).parts[0] not in PRIVATE]


def undocumented(found: list[Room]) -> list[str]:
    """Give the dotted names of what has no docstring: rooms, public names, and public methods of public classes."""
    missing = [room.name for room in found if not room.doc]
    for room in found:
        for name in room.names:
            missing += [name.full] if not name.doc else []
            missing += [f"{name.full}.{member.name}" for member in name.members if not member.doc]
    return missing


def incomplete(found: list[Room]) -> list[str]:
    """Give the public functions whose docstring leaves out a parameter or what is returned, and what it leaves out."""
    return sorted({f"{name.full}: {part}" for room in found for name in room.names for part in name.lacks})


def page(found: list[Room]) -> str:
    """Give the page in Markdown."""
    out = [_HEAD]
    shown: dict[tuple[str, str | None], str] = {}
    for room in found:
        out += [f"## {room.name}\n", *_prose(room.doc)]
        for name in room.names:
            first = shown.setdefault((name.name, name.doc), name.full)
            out += _entry(name) if first == name.full else [f"### {name.full}\n", f"The same as `{first}`.\n"]
    return "\n".join(out).rstrip() + "\n"


def _entry(name: Name) -> Iterator[str]:
    yield f"### {name.full}\n"
    if name.signature:
        yield f"    {name.signature}\n"
    yield from _prose(name.doc)
    for member in name.members:
        first = " ".join((member.doc or "").partition("\n\n")[0].split())
        yield f"- `{member.signature}`: {first}"
    if name.members:
        yield ""


def _prose(doc: str | None) -> Iterator[str]:
    """The first paragraph as a paragraph, the rest as it is written."""
    first, _, rest = (doc or "").partition("\n\n")
    if first:
        yield f"{' '.join(first.split())}\n"
    if rest.strip():
        yield f"```text\n{rest.strip()}\n```\n"


def _room(file: Path, package: Path) -> Room:
    """The room whose public names ``file`` lists: a stub, the package's ``__init__.py``, or a module."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    parts = list(file.relative_to(package).with_suffix("").parts)
    dotted = ".".join([package.name, *(part for part in parts if part != "__init__")])
    source = tree if file.suffix == ".py" else ast.parse(file.with_suffix(".py").read_text(encoding="utf-8"))
    offered = sorted(name for name in _listed(tree, file) if not name.startswith("__"))
    names = tuple(_name(dotted, name, *_defined(name, file, package)) for name in offered)
    return Room(dotted, ast.get_docstring(source), names)


def _listed(tree: ast.Module, file: Path) -> list[str]:
    """What ``__all__`` lists; of a module without one, what does not begin with an underscore and is defined there."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    if file.suffix == ".pyi" or file.name == "__init__.py":
        raise SystemExit(f"{file}: __all__ is missing")
    return [name for node in tree.body for name in _names_of(node) if not name.startswith("_")]


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _defined(name: str, file: Path, package: Path) -> tuple[ast.Module, ast.stmt | None, str | None]:
    """Where a name is defined: the tree of that file, the statement (None: it is the module), and what follows it.

    What follows is the string under an assignment, which is how constants are documented.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for at, node in enumerate(tree.body):
        if name in _names_of(node):
            after = tree.body[at + 1] if at + 1 < len(tree.body) else None
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = after.value.value if is_text else None  # type: ignore[union-attr]
            return tree, node, inspect.cleandoc(text) if isinstance(text, str) else None
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.ImportFrom) else []:
            if (alias.asname or alias.name) == name:
                return _imported(node, alias.name, file, package)
    raise SystemExit(f"{file}: {name} is listed in __all__ and defined nowhere")


def _imported(
    node: ast.ImportFrom, name: str, file: Path, package: Path
) -> tuple[ast.Module, ast.stmt | None, str | None]:
    """Follow an import to where the name is defined."""
    if node.level:
        base = file.parents[node.level - 1].joinpath(*(node.module or "").split("."))
    else:
        base = package.parent.joinpath(*(node.module or "").split("."))
    for module in (base / name, base):
        for target in (module.with_suffix(".py"), module / "__init__.pyi", module / "__init__.py"):
            if target.exists():
                if module != base:  # a module is what is offered
                    return ast.parse(target.with_suffix(".py").read_text(encoding="utf-8")), None, None
                return _defined(name, target, package)
    raise SystemExit(f"{file}: cannot find {node.module}.{name}")


def _name(room: str, name: str, tree: ast.Module, node: ast.stmt | None, after: str | None) -> Name:
    if node is None:
        return Name(room, name, "module", "", ast.get_docstring(tree))
    if isinstance(node, ast.ClassDef):
        members = tuple(_member(room, name, item) for item in node.body if _is_public_method(item))
        return Name(room, name, "class", _of_class(node), ast.get_docstring(node), members)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return Name(room, name, "function", _of_function(node), ast.get_docstring(node), lacks=_lacking(node))
    return Name(room, name, "value", "", after)


def _lacking(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """What the docstring of a function does not say: of its parameters, and of what it returns or yields."""
    doc = ast.get_docstring(node) or ""
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
    named = [argument.arg for argument in given if argument is not None and not argument.arg.startswith("_")]
    missing = [f"Args: {name}" for name in named if not re.search(rf"^ +\*{{0,2}}{name}\b.*:", doc, re.MULTILINE)]
    returns = "None" if node.returns is None else ast.unparse(node.returns)
    silent = returns in ("None", "NoReturn", "Never") or re.search(r"^(Returns|Yields):", doc, re.MULTILINE)
    return (*missing, *([] if silent else ["Returns"]))


def _is_public_method(item: ast.stmt) -> bool:
    if not isinstance(item, ast.FunctionDef) or item.name.startswith("_"):
        return False
    return not any(isinstance(d, ast.Attribute) and d.attr in ("setter", "overload") for d in item.decorator_list)


def _member(room: str, owner: str, item: ast.stmt) -> Name:
    assert isinstance(item, ast.FunctionDef)
    kinds = {d.id for d in item.decorator_list if isinstance(d, ast.Name)}
    if kinds & {"property", "cached_property"}:
        return Name(f"{room}.{owner}", item.name, "property", item.name, ast.get_docstring(item))
    return Name(f"{room}.{owner}", item.name, "method", _of_function(item, method=True), ast.get_docstring(item))


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, *, method: bool = False) -> str:
    arguments = ast.unparse(node.args)
    if method:
        arguments = arguments.removeprefix("self").removeprefix("cls").removeprefix(", ")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    return f"{node.name}({arguments}){returns}"


def _of_class(node: ast.ClassDef) -> str:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return _of_function(item, method=True).replace("__init__", node.name, 1).removesuffix(" -> None")
    is_data = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
    bases = [ast.unparse(base) for base in node.bases]
    if is_data or "NamedTuple" in bases:
        fields = [
            f"{ast.unparse(item.target)}: {ast.unparse(item.annotation)}"
            for item in node.body
            if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_")
        ]
        return f"{node.name}({', '.join(fields)})"
    return f"class {node.name}({', '.join(bases)})" if bases else f"class {node.name}"


def main() -> int:
    """Write the page, or check it."""
    found = rooms()
    missing = [f"{name} has no docstring" for name in undocumented(found)] + incomplete(found)
    for name in missing:
        print(f"error: {name}", file=sys.stderr)
    text = page(found)
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return int(bool(missing))
    current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    if not current:
        print(f"error: {PAGE.name} is out of date; run: python -m scripts.api_docs", file=sys.stderr)
    return int(bool(missing) or not current)


if __name__ == "__main__":
    sys.exit(main())
