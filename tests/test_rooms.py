"""The tree is the plan: the package has the rooms of the contract and nothing else, and rooms meet at their doors."""

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dspodfl"
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
LAYERS = next(contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")
ROOMS = [name.strip() for layer in LAYERS for name in layer.split("|")]


def test_the_top_level_is_what_the_layers_name():
    found = {path.name for path in PACKAGE.iterdir()} - {"__pycache__"}
    rooms = {name if (PACKAGE / name).is_dir() else f"{name}.py" for name in ROOMS}
    assert found == rooms | {"__init__.py", "py.typed"}


def test_the_architecture_page_draws_the_layers():
    page = (ROOT / "docs/architecture.md").read_text()
    drawn = page.partition("```text\n")[2].partition("```")[0]
    lines = [line.partition("  ")[0] for line in drawn.splitlines() if line and not line.startswith(" ")]
    assert lines == LAYERS


def test_every_package_says_what_it_is_for():
    for file in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(file.read_text())), file


@pytest.mark.parametrize("stub", sorted(PACKAGE.rglob("__init__.pyi")), ids=lambda path: path.parent.name)
def test_every_name_that_a_room_offers_can_be_imported(stub):
    room = import_module(".".join(["dspodfl", *stub.parent.relative_to(PACKAGE).parts]))
    assert set(room.__all__) == offered(stub) != set()
    assert [name for name in room.__all__ if not hasattr(room, name)] == []


def offered(stub):
    """The names that a package offers: ``__all__`` of its stub, or nothing where there is none."""
    for node in ast.parse(stub.read_text()).body if stub.exists() else []:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def imports(file, package):
    """The absolute imports of a file from the package: (parts of the module below the package, names or None)."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == package.name:
                    yield alias.name.split(".")[1:], None
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = file.relative_to(package).parts[: -node.level]
                module = [*base, *(node.module.split(".") if node.module else [])]
            elif node.module.split(".")[0] == package.name:
                module = node.module.split(".")[1:]
            else:
                continue
            yield module, [alias.name for alias in node.names]


def offers(package, name):
    """Whether a name is that of a room, or of a file at the top."""
    return (package / name).is_dir() or (package / f"{name}.py").is_file()


def trespasses(package):
    """Imports of another room's private files, and of names that the room does not offer."""
    for file in sorted(package.rglob("*.py")):
        here = file.relative_to(package).with_suffix("").parts[0]
        for module, names in imports(file, package):
            where = f"{file.relative_to(package)}: {'.'.join(module)}"
            if not module:
                if names is not None and here != "__init__":  # from dspodfl import rng
                    yield from (f"{where} {name}" for name in names if not offers(package, name))
                continue
            if module[0] == here or (len(module) == 1 and (package / f"{module[0]}.py").is_file()):
                continue
            folder = package.joinpath(*module)
            if not folder.is_dir():
                yield f"{where} is a file of another room"
            elif names is None:
                yield f"{where} is imported whole"
            else:
                known = offered(folder / "__init__.pyi")
                yield from (f"{where} does not offer {name}" for name in names if name not in known)


def test_no_room_imports_another_rooms_private_files():
    assert list(trespasses(PACKAGE)) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from pack.low import public", []),
        ("from pack import numbers", []),
        ("from pack.numbers import one", []),
        ("from pack.low.files import public", ["high/user.py: low.files is a file of another room"]),
        ("from pack.low import hidden", ["high/user.py: low does not offer hidden"]),
        ("from ..low.files import public", ["high/user.py: low.files is a file of another room"]),
        ("import pack.low.files", ["high/user.py: low.files is a file of another room"]),
        ("import pack.low", ["high/user.py: low is imported whole"]),
        ("from pack import public", ["high/user.py:  public"]),
        ("from .other import anything", []),
    ],
)
def test_an_import_through_the_wall_is_found(line, found, tmp_path):
    package = tmp_path / "pack"
    for name, text in {
        "__init__.py": "from pack.low import public",
        "numbers.py": "one = 1",
        "low/__init__.py": "",
        "low/__init__.pyi": "from .files import public as public\n__all__ = ['public']",
        "low/files.py": "public = hidden = 1",
        "high/user.py": line,
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert list(trespasses(package)) == found


def test_every_file_that_the_architecture_page_names_exists():
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py)?)`", (ROOT / "docs/architecture.md").read_text()))
    assert len(named) > 30
    assert [name for name in sorted(named) if not (PACKAGE / name).exists()] == []
