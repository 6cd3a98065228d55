"""The types of every field that is read of a JSON file, and its kind and format."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr, ValidationError

from dspodfl.errors import DataError

Number = StrictInt | StrictFloat
Count = Field(ge=0)


class _Shape(BaseModel):
    """Fields that are not named here may be anything."""

    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=False)


class _Spread(_Shape):
    mean: Number | None
    std: Number | None


class _Quantiles(_Shape):
    median: Number | None
    quartile1: Number | None
    quartile3: Number | None


class _Target(_Shape):
    accuracy: Number
    reached: StrictInt = Count
    delay_total: _Quantiles


class _AtDelay(_Shape):
    delay: Number
    reached: StrictInt = Count
    accuracy: _Spread


class _Delays(_Shape):
    delay_total: _Quantiles


class _Algorithm(_Shape):
    seeds: StrictInt = Count
    diverged: StrictInt = Count
    final_accuracy: _Spread
    final_loss: _Spread
    final_optimality_error: _Spread
    final_delay: _Delays
    targets: list[_Target]
    at_delay: list[_AtDelay]


class _Study(_Shape):
    iterations: StrictInt = Count
    iterations_done: StrictInt = Count
    complete: StrictBool
    wall_seconds: Number = Count
    run_iterations_per_second: Number = Count
    device: StrictStr
    precision: StrictStr
    seeds: dict[StrictStr, dict[StrictStr, Any]]
    source: Literal["simulation", "nodes"] = "simulation"
    models_missing: StrictInt = Field(default=0, ge=0)


class _Summary(_Shape):
    study: _Study
    algorithms: dict[StrictStr, _Algorithm] = Field(min_length=1)


class _Outcome(_Shape):
    name: StrictStr
    title: StrictStr
    kind: StrictStr
    axes: list[StrictStr]
    paper: StrictStr = ""
    says: StrictStr = ""
    why: StrictStr = ""
    verdicts: list[dict[StrictStr, Any]]
    about: dict[StrictStr, Any]
    config: StrictStr = ""


def check_format(content: Any, kinds: Collection[str], newest: int, where: str) -> None:
    """Check ``kind`` and ``format`` of a JSON file; version 0.1 wrote neither.

    >>> check_format({"kind": "run", "format": 1}, {"run"}, 1, "summary.json")
    >>> check_format({"kind": "run", "format": 2}, {"run"}, 1, "summary.json")
    Traceback (most recent call last):
    dspodfl.errors.base.DataError: summary.json is of kind 'run', format 2; here 'run', 1

    Args:
        content: What the file says.
        kinds: The kinds that are read here.
        newest: The latest format that is read here.
        where: What an error begins with.

    Raises:
        DataError: It is of another kind, or of a later format.
    """
    kind, later = (content.get("kind"), content.get("format", newest)) if isinstance(content, dict) else (None, newest)
    if (kind is not None and kind not in tuple(kinds)) or not isinstance(later, int) or later > newest:
        allowed = " or ".join(map(repr, kinds))
        raise DataError(f"{where} is of kind {kind!r}, format {later!r}; here {allowed}, {newest}")


def check_summary(content: Any, where: str) -> None:
    """Check the types of what summary.json says.

    Args:
        content: What it says.
        where: What an error begins with.

    Raises:
        DataError: A field is missing or of a wrong type; it names the first.
    """
    _check(_Summary, content, f"{where} is not a summary")


def check_outcome(content: Any, where: str) -> None:
    """Check the types of what result.json of a sweep or a reproduction says.

    Args:
        content: What it says.
        where: What an error begins with.

    Raises:
        DataError: A field is missing or of a wrong type; it names the first.
    """
    _check(_Outcome, content, f"{where} is not that of a sweep or a reproduction")


def _check(shape: type[_Shape], content: Any, where: str) -> None:
    try:
        shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("int", "float")) or "as a whole"
        raise DataError(f"{where}: {place}: {first['msg'].lower()}") from None
