"""Configuration: typed (`Config`), written as TOML, and built into a study."""

from dspodfl.config.schema import FREE, Config
from dspodfl.config.template import template
from dspodfl.config.toml import as_config, dumps, load

__all__ = ["FREE", "Config", "as_config", "dumps", "load", "template"]
