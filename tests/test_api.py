"""The reference of the Python interface is current, and every public name has a docstring."""

import pytest
from scripts import api_docs


@pytest.fixture(scope="module")
def rooms():
    return api_docs.rooms()


def test_every_public_name_is_documented(rooms):
    assert api_docs.undocumented(rooms) == []


def test_every_public_function_says_what_it_takes_and_returns(rooms):
    assert api_docs.incomplete(rooms) == []


def test_the_page_is_what_the_docstrings_say(rooms):
    assert api_docs.PAGE.read_text() == api_docs.page(rooms), "run: python -m scripts.api_docs"


def test_every_room_and_what_the_package_offers_is_on_the_page(rooms):
    import dspodfl

    names = {room.name: {name.name for name in room.names} for room in rooms}
    assert names["dspodfl"] == {name for name in dspodfl.__all__ if not name.startswith("__")}
    assert {"dspodfl.rng", "dspodfl.network", "dspodfl.study", "dspodfl.study.store", "dspodfl.ui"} <= set(names)
    assert not any("_kernels" in name for name in names)


@pytest.fixture
def package(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / "pack" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "pack"

    return write


SOURCE = '''
"""A file."""
ONE = 1
"""The first number."""
TWO, THREE = 2, 3

class Box:
    """A box."""
    def __init__(self, size: int = 1) -> None: ...
    def opened(self, by: str) -> bool:
        """Whether it is open."""
    def closed(self): ...
    def _lid(self): ...

def make(x: int, *, y: float = 0.5) -> Box:
    """Make a box.

    Args:
        x: The size.
    """
'''
STUB = "from . import files as files\n" + "".join(
    f"from .files import {name} as {name}\n" for name in ("ONE", "TWO", "Box", "make")
)


def written(package):
    return package(
        **{
            "__init__.py": '"""A package."""\nfrom pack.room import make\n__all__ = ["make"]',
            "room/__init__.py": '"""A room."""',
            "room/__init__.pyi": STUB + '__all__ = ["ONE", "TWO", "Box", "files", "make"]',
            "room/files.py": SOURCE,
        }
    )


def test_what_a_docstring_leaves_out_is_found(package):
    found = api_docs.incomplete(api_docs.rooms(written(package)))
    assert found == [f"pack{room}.make: {part}" for room in ("", ".room") for part in ("Args: y", "Returns")]


def test_what_has_no_docstring_is_found(package):
    assert api_docs.undocumented(api_docs.rooms(written(package))) == ["pack.room.Box.closed", "pack.room.TWO"]


def test_the_page_has_signatures_and_docstrings_and_each_name_once(package):
    page = api_docs.page(api_docs.rooms(written(package)))
    assert "    make(x: int, *, y: float=0.5) -> Box\n\nMake a box.\n\n```text\nArgs:\n    x: The size.\n```" in page
    assert "    Box(size: int=1)\n\nA box.\n\n- `opened(by: str) -> bool`: Whether it is open." in page
    assert "### pack.room.ONE\n\nThe first number." in page and "_lid" not in page
    assert "### pack.room.make\n\nThe same as `pack.make`." in page


def test_a_name_that_is_defined_nowhere_is_refused(package):
    folder = package(**{"__init__.py": '"""A package."""\n__all__ = ["gone"]'})
    with pytest.raises(SystemExit, match="gone"):
        api_docs.rooms(folder)


def test_check_says_what_is_out_of_date(rooms, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(api_docs, "rooms", lambda: rooms)
    monkeypatch.setattr(api_docs, "PAGE", tmp_path / "api.md")
    monkeypatch.setattr("sys.argv", ["api_docs", "--check"])
    assert api_docs.main() == 1 and "out of date" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["api_docs"])
    assert api_docs.main() == 0
    monkeypatch.setattr("sys.argv", ["api_docs", "--check"])
    assert api_docs.main() == 0
