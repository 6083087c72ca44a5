"""The version, as the package says it."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("mainstem")
except PackageNotFoundError:  # run from a source tree that was not installed
    VERSION = "0+unknown"
