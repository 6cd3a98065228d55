from .cli.app import main as main

__all__ = [
    "main",
]
