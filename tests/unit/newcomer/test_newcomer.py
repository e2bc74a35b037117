"""The newcomer's path: what the README says can be typed."""

import shlex
import subprocess

from tests.newcomer.readme import README, commands


def test_the_readme_has_a_newcomers_commands() -> None:
    """A server, a request for it, and one more command for two nodes of each role; a shell can read each."""
    found = commands(README.read_text())

    assert shlex.split(found.serve, comments=True) == ["make", "serve"]
    assert shlex.split(found.more)[-2:] == ["make", "serve"]
    assert shlex.split(found.request)[:2] == ["curl", "-i"]
    for line in (found.serve, found.request, found.more, found.more_request):
        subprocess.run(["bash", "-n", "-c", line], check=True)
