"""Configuration: typed (`Config`), written as TOML, and built into a study."""

from dspodfl.config.schema import Config
from dspodfl.config.toml import dumps, load, template

__all__ = ["Config", "dumps", "load", "template"]
