"""Which version this is. Below all else, so that whoever says it needs nothing of the package."""

__version__ = "0.1.0"
