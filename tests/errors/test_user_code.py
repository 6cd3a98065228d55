"""Code of the user: where it is found, what it may not take the place of, and what becomes of its failures."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from tests.edge import TINY_TOML, CommandLine

from dspodfl.errors import InputError, user_code
from dspodfl.errors.signals import Interrupt, Interrupted

NET = """
from torch import nn

def net(input_shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], outputs))
"""
TRAP = "open(__file__ + '.ran', 'w').close()\n"


@pytest.fixture(autouse=True)
def own_modules(monkeypatch):
    """What a test loads is not there for the next one."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    user_code.forget()
    yield
    for name in set(sys.modules) - before:
        if name.startswith("own_") or name in ("numba_like", "helper"):
            del sys.modules[name]
    user_code.forget()
    user_code._loaded.clear()


@pytest.fixture
def dspodfl(monkeypatch, capsys, tmp_path):
    line = CommandLine(monkeypatch, capsys, tmp_path)
    (tmp_path / "study.toml").write_text(TINY_TOML)
    return line


def write(folder, **files):
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


@pytest.mark.parametrize("name", ["sys:exit", "os:system", "builtins:exec", "posix:system", "_io:open", "os.path:join"])
@pytest.mark.parametrize("no_code", [(), ("--no-code",)])
@pytest.mark.parametrize("key", ["model.factory", "algorithms"])
def test_what_is_part_of_python_is_refused_before_anything_is_imported(key, no_code, name, dspodfl):
    change = f'model={{factory="{name}"}}' if key == "model.factory" else f'algorithms=["{name}"]'
    answer = dspodfl("check", "study.toml", "--set", change, *no_code)
    assert (answer.code, answer.out) == (2, "")
    assert f"{key} = {name!r}: must be of a module of yours or of an installed package" in answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize(
    "name", ["own_door:os.system", "own_door:run", "own_door:os", "torch:os.system", "own_door:exit"]
)
def test_nor_may_another_module_lead_there(name, tmp_path):
    write(tmp_path, own_door="import os\nfrom subprocess import run\nfrom sys import exit")
    user_code.search(tmp_path)
    with pytest.raises(InputError, match="which is part of Python"):
        user_code.load(name, "model.factory")


def test_a_module_is_loaded_from_beside_the_configuration_then_from_the_working_directory(tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, own_a="where = 'one'")
    write(two, own_a="where = 'two'", own_b="where = 'two'")
    monkeypatch.chdir(two)
    before = list(sys.path)
    user_code.search(user_code.folder_of(one / "study.toml"), user_code.folder_of(None))
    assert [user_code.load(f"own_{name}:where", "algorithms") for name in "ab"] == ["one", "two"]
    assert sys.path == before
    assert sys.modules["own_a"].__file__ == str(one / "own_a.py")
    user_code.forget()
    user_code.search(two)  # another configuration, in the same process
    assert user_code.load("own_a:where", "algorithms") == "two"


def test_packages_dotted_names_and_files_beside_a_module_are_found(tmp_path):
    write(
        tmp_path,
        own_package____init__="from . import inner",
        own_package__inner="import own_helper\nfrom .deep import number\nclass Holder:\n    value = own_helper.value",
        own_package__deep="number = 3",
        own_plain__nested__file="number = 4",
        own_helper="value = 7",
    )
    user_code.search(tmp_path)
    assert user_code.load("own_package.inner:Holder.value", "algorithms") == 7
    assert user_code.load("own_package.deep:number", "algorithms") == 3
    assert user_code.load("own_plain.nested.file:number", "algorithms") == 4  # a folder without __init__.py


def test_what_is_installed_comes_first_for_what_a_module_imports(tmp_path):
    write(tmp_path, own_user="import numba, psutil, json\nfiles = numba.__file__, psutil.__file__, json.__file__")
    write(tmp_path, numba=TRAP, psutil=TRAP, json=TRAP)
    user_code.search(tmp_path)
    with pytest.warns(UserWarning, match="is not used"):
        assert not any(str(tmp_path) in file for file in user_code.load("own_user:files", "algorithms"))
    assert not list(tmp_path.glob("*.ran"))


def test_a_file_that_is_not_used_because_a_module_is_installed_is_named_with_that_module(tmp_path):
    import random

    write(
        tmp_path,
        own_shadowed="import own_aside\nfrom own_pack import inner\nfrom random import choice",
        own_aside="def late():\n    import psutil",
        own_pack____init__="",
        own_pack__inner="from . import json\nimport rich",
        own_pack__json="",
        random=TRAP,
        psutil=TRAP,
        rich=TRAP,
        json=TRAP,
    )
    user_code.search(tmp_path)
    with pytest.warns(UserWarning, match="is not used") as told:
        assert user_code.load("own_shadowed:own_aside.late", "algorithms")
    said = sorted(str(one.message) for one in told)
    assert len(said) == 3, said
    importers = {"psutil": "own_aside", "random": "own_shadowed", "rich": "own_pack/inner"}
    for line, (name, by) in zip(said, importers.items(), strict=True):
        assert line.startswith(f"{tmp_path / name}.py is not used: {name}, which {tmp_path / by}.py imports, is /")
        assert line.endswith("; rename the first if it is meant")
    assert random.__file__ in said[1]
    assert not list(tmp_path.glob("*.ran"))


def test_a_file_that_is_used_is_not_warned_of(tmp_path):
    write(tmp_path, own_uses="import helper, json\nfrom torch import nn\nvalue = helper.value", helper="value = 3")
    (tmp_path / "torch").mkdir()
    user_code.search(tmp_path)
    assert user_code.load("own_uses:value", "algorithms") == 3


@pytest.mark.filterwarnings("default:.* is not used")
def test_the_command_says_in_one_line_which_file_is_not_used(dspodfl):
    write(dspodfl.folder, own_random="import random\n" + NET, random=TRAP)
    answer = dspodfl("check", "study.toml", "--set", 'model={factory="own_random:net"}')
    assert answer.code == 0 and len(answer.err.splitlines()) == 1
    assert f"{dspodfl.folder / 'random.py'} is not used" in answer.err


def test_files_beside_the_configuration_are_found_by_code_of_the_user_alone(tmp_path):
    import importlib.util

    write(tmp_path, own_missing=TRAP)
    user_code.search(tmp_path)
    assert importlib.util.find_spec("own_missing") is None
    with pytest.raises(ModuleNotFoundError):
        import own_missing  # noqa: F401
    assert not list(tmp_path.glob("*.ran"))


@pytest.mark.parametrize("name", ["numba", "torch", "rich"])
def test_a_module_that_is_installed_too_is_an_error_that_names_both(name, tmp_path):
    write(tmp_path, **{name: TRAP})
    user_code.search(tmp_path)
    with pytest.raises(InputError) as error:
        user_code.load(f"{name}:thing", "model.factory")
    assert str(tmp_path / f"{name}.py") in str(error.value)
    assert "site-packages" in str(error.value)
    assert not list(tmp_path.glob("*.ran"))


def test_a_mere_folder_beside_the_configuration_does_not_hide_an_installed_package(tmp_path):
    (tmp_path / "torch").mkdir()
    user_code.search(tmp_path)
    assert user_code.load("torch.nn:Linear", "model.factory").__name__ == "Linear"


ENDINGS = {
    "sys.exit()": "SystemExit",
    "sys.exit(0)": "SystemExit: 0",
    "sys.exit('no')": "SystemExit: no",
    "raise EOFError": "EOFError",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise GeneratorExit": "GeneratorExit",
    "raise RecursionError('deep')": "RecursionError: deep",
    "import typer; raise typer.Exit(0)": "Exit",
    "import typer; raise typer.Abort": "Abort",
}
PLACES = {
    "a module": ("{}", 'model={{factory="own_end:net"}}'),
    "a factory": ("def net(outputs): {}", 'model={{factory="own_end:net"}}'),
    "a forward pass": (
        "from torch import nn\nclass net(nn.Linear):\n"
        "    def __init__(self): super().__init__(3, 4)\n"
        "    def forward(self, x): {}",
        'model={{factory="own_end:net"}}',
    ),
    "a schedule": ("def net(k, part, rates): {}", 'algorithms=["own_end:net"]'),
    "a schedule's module": ("{}", 'algorithms=["own_end:net"]'),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ending", ENDINGS)
def test_user_code_that_ends_the_program_is_an_error_in_one_line(ending, place, dspodfl):
    text, change = PLACES[place]
    write(dspodfl.folder, own_end="import sys\n" + text.format(ending))
    answer = dspodfl("run", "study.toml", "--set", change.format(), "--out", "out")
    assert (answer.code, answer.out) == (2, "")
    assert ENDINGS[ending] in answer.err and len(answer.err.splitlines()) == 1, answer.err
    assert not (dspodfl.folder / "out").exists()


@pytest.mark.parametrize("ending", ENDINGS)
def test_user_code_that_ends_the_program_in_the_middle_of_a_run_is_an_error_with_its_place(ending, dspodfl):
    late = f"""
    import sys
    from dspodfl.algorithms.schedules import Events
    import numpy as np

    def late(k, part, rates):
        if k[-1] > 0:
            {ending}
        sizes = rates.graph.n, rates.graph.links
        return Events(*(np.ones((len(k), size), dtype=bool) for size in sizes))
    """
    write(dspodfl.folder, own_late=late)
    answer = dspodfl("run", "study.toml", "--set", 'algorithms=["own_late:late"]', "--out", "out", "--quiet")
    assert answer.code == 2
    assert ENDINGS[ending] in answer.err and "own_late.py:8" in answer.err, answer.err
    assert len(answer.err.splitlines()) == 1


@pytest.fixture
def _sigint():
    """Ctrl-C as in a shell: a process that was started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_sigint")
def test_a_signal_of_the_user_passes_through_user_code(tmp_path):
    write(tmp_path, own_signal="import signal\nsignal.raise_signal(signal.SIGTERM)")
    user_code.search(tmp_path)
    with Interrupt(), pytest.raises(Interrupted) as end:
        user_code.load("own_signal:x", "algorithms")
    assert end.value.code == 143
    with pytest.raises(KeyboardInterrupt), user_code.guarded("algorithms", "x", "it"):
        signal.raise_signal(signal.SIGINT)  # Python's own handler: Ctrl-C in a program that uses the library


@pytest.mark.parametrize("made", ["None", "3", "nn.Linear", "[nn.Linear(3, 4)]"])
def test_what_a_factory_returns_must_be_a_module(made, dspodfl):
    write(dspodfl.folder, own_made=f"from torch import nn\ndef net(): return {made}")
    answer = dspodfl("check", "study.toml", "--set", 'model={factory="own_made:net"}')
    assert answer.code == 2 and "a factory of nn.Module; it returned a" in answer.err


def test_check_without_code_imports_nothing_and_says_what_it_left_out(dspodfl):
    write(dspodfl.folder, own_trap=TRAP + NET)
    words = ["check", "study.toml", "--set", 'model={factory="own_trap:net"}']
    words += ["--set", 'algorithms=["dgd", "own_trap:when"]', "--no-code"]
    answer = dspodfl(*words)
    assert (answer.code, answer.err) == (0, "")
    valid, *left_out = answer.out.splitlines()
    assert "valid. 2 runs" in valid and "parameters" not in valid
    assert left_out == [
        "model.factory = 'own_trap:net' was not imported, and is not checked",
        "algorithms = 'own_trap:when' was not imported, and is not checked",
    ]
    assert not list(dspodfl.folder.glob("*.ran"))
    answer = dspodfl(*words, "--set", "graph.kind='nonsense'")
    assert answer.code == 2 and "nonsense" in answer.err
    assert dspodfl("check", "study.toml", "--set", 'model={factory="own_trap:net"}').code == 0
    assert list(dspodfl.folder.glob("*.ran"))


def test_check_says_in_its_help_that_code_is_run(dspodfl):
    said = " ".join(dspodfl("check", "--help").out.split())
    assert "That code is imported and run" in said and "--no-code" in said


def test_no_file_of_the_working_directory_takes_the_place_of_an_installed_module(tmp_path):
    write(tmp_path, **SHADOWS)
    (tmp_path / "study.toml").write_text(TINY_TOML)
    run_in(tmp_path, "run study.toml --quiet --device cpu --out out")
    assert not list(tmp_path.glob("*.ran"))


SHADOWS = dict.fromkeys(("numba", "psutil", "networkx", "rich", "typer", "numpy", "torch", "own_helper"), TRAP)


def run_in(folder, words):
    """The command line in a process of its own, which finds the package as it is installed here."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p.endswith("src"))}
    command = [sys.executable, "-m", "dspodfl", *words.split()]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ranks_run_the_module_beside_the_configuration(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    write(tmp_path / "there", own_net=NET)
    write(tmp_path / "here", own_net=TRAP, **SHADOWS)
    (tmp_path / "there" / "study.toml").write_text(TINY_TOML + '[model]\nfactory = "own_net:net"\n')
    run_in(tmp_path / "here", "run ../there/study.toml --ranks 2 --device cpu --quiet --out out")
    assert not list((tmp_path / "here").glob("*.ran"))
