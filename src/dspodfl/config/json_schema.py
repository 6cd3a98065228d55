"""The configuration as a JSON schema, for editors and other programs."""

from __future__ import annotations

from typing import Any

from dspodfl.algorithms import ALGORITHMS
from dspodfl.config.algorithm import AlgorithmTable
from dspodfl.config.local import LocalTable
from dspodfl.config.reference import without_keys
from dspodfl.config.schema import Config

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TITLE = "DSpodFL configuration"
"""The title of the JSON schema, by which a schema that this program wrote is recognised."""
_UNTIL_DELAY = {
    "type": "number",
    "exclusiveMinimum": 0,
    "deprecated": True,
    "description": "the former name of until = { delay = … }; not together with until",
}
"""A key of version 0.1, which is still read (`dspodfl.config.schema`), and never written."""


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the configuration (draft 2020-12), short forms included.

    Rules that involve several keys are not in it: ``dspodfl check`` validates them, and builds the study.

    Returns:
        The schema, as plain dictionaries and lists.

    >>> json_schema()["title"]
    'DSpodFL configuration'
    """
    made = Config.model_json_schema()
    properties, definitions = made["properties"], made["$defs"]
    names = made["properties"]["algorithms"]
    table = {"$ref": f"#/$defs/{AlgorithmTable.__name__}"}
    names["items"] = {"anyOf": [{"enum": list(ALGORITHMS)}, {"type": "string"}, table]}
    _also(properties["algorithms"], {"type": "string"}, ("type", "items", "minItems"))
    _also(definitions["Train"]["properties"]["learning_rate"], {"type": "number", "exclusiveMinimum": 0}, ("oneOf",))
    definitions["Train"]["properties"]["until_delay"] = _UNTIL_DELAY
    definitions[LocalTable.__name__]["properties"]["adam"]["anyOf"].insert(0, {"const": True})
    for table in (made, *definitions.values()):
        table["description"] = without_keys(table.get("description", "")).partition("\n\n")[0]
    return {"$schema": DIALECT, **_cleaned(made), "title": TITLE}


def _also(schema: dict[str, Any], short: dict[str, Any], full: tuple[str, ...]) -> None:
    """Allow a short form besides the full one."""
    schema.pop("discriminator", None)
    schema["anyOf"] = [{key: schema.pop(key) for key in full if key in schema}, short]


def _cleaned(value: Any) -> Any:
    """Without ``discriminator``, which is OpenAPI's, and the titles that only repeat the names of keys."""
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if not isinstance(value, dict):
        return value
    out = {key: _cleaned(item) for key, item in value.items() if key != "discriminator"}
    if isinstance(out.get("title"), str) and ("type" in out or "anyOf" in out or "oneOf" in out or "const" in out):
        del out["title"]
    return out
