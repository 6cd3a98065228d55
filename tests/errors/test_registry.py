"""Registries: what is registered describes itself, and what is not is refused by name."""

from typing import Annotated

import pytest

from dspodfl import InputError
from dspodfl.errors import REQUIRED, Doc, Positive, Registry


def made():
    registry = Registry("bowl.fruit", context=["count", "seed"])

    @registry.register(heavy=True)
    def melon(count: int, weight: Annotated[Positive, Doc("of one, in kilograms", example=2.0)]) -> str:
        """Green and round.

        And more of it.
        """
        return f"{count} x {weight}"

    return registry


def test_an_entry_has_its_line_its_parameters_and_its_facts():
    entry = made()["melon"]
    assert entry.line == "Green and round." and entry.facts == {"heavy": True}
    (weight,) = entry.parameters
    assert (weight.name, weight.default, weight.doc.example) == ("weight", REQUIRED, 2.0)


def test_a_maker_gets_of_the_context_what_it_asks_for():
    entry = made()["melon"]
    assert entry.takes("count") and not entry.takes("seed")
    assert entry.make({"count": 3, "seed": 7}, {"weight": 1.5}) == "3 x 1.5"


def test_an_unknown_name_is_refused_with_the_field_and_the_nearest():
    with pytest.raises(InputError, match=r"bowl\.fruit = 'mellon': must be one of melon; did you mean 'melon'"):
        made()["mellon"]


def test_a_name_is_registered_once_and_with_a_description():
    registry = made()
    with pytest.raises(ValueError, match="registered twice"):
        registry.register("melon")(lambda: None)
    with pytest.raises(ValueError, match="no docstring"):
        registry.register("plum")(lambda: None)


def test_a_parameter_without_a_meaning_is_an_error():
    registry = made()

    @registry.register()
    def plum(size: int) -> str:
        """Blue."""
        return "plum"

    with pytest.raises(TypeError, match="plum: parameter size has no Doc"):
        _ = registry["plum"].parameters
