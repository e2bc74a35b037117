"""Which version of a distribution is installed, found out without importing it."""

from importlib import metadata


def installed_version(*distributions: str) -> str:
    """Return the version of the first of these that is installed; "" if none is."""
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return ""
