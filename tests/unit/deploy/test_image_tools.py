"""What reads Dockerfiles and .dockerignore files for the tests of images."""

import pytest

from tests.support.images import context
from tests.support.images.dockerfile import DockerfileError, assignments, expand, stages

TEXT = """\
# a comment
ARG BASE=debian:1-slim
FROM ${BASE} AS one
RUN first \\
    # in between
    && second
FROM one
COPY --from=one --chmod=644 /a /b
ENV PATH=/opt:$PATH NAME=value
CMD ["a", "b c"]
"""


def test_stages_hold_their_instructions() -> None:
    """Lines that go on are one, comments are none, variables of a base are replaced, flags stand apart."""
    one, two = stages(TEXT)

    assert (one.name, one.base, two.name, two.base) == ("one", "debian:1-slim", "", "one")
    assert one.instructions[0].text.split() == ["first", "&&", "second"]
    assert two.instructions[0].flags == {"from": "one", "chmod": "644"}
    assert two.instructions[0].words == ["/a", "/b"]
    assert assignments(two.instructions[1], {"PATH": "/bin"}) == {"PATH": "/opt:/bin", "NAME": "value"}
    assert two.instructions[2].words == ["a", "b c"]


@pytest.mark.parametrize("text", ["FROM a\nONBUILD RUN x\n", "RUN x\n"])
def test_what_is_not_known_is_refused(text: str) -> None:
    """An image must not seem to be built from half of its file."""
    with pytest.raises(DockerfileError, match="line"):
        stages(text)


def test_variables_that_are_not_there_are_nothing() -> None:
    """As in an image."""
    assert expand("${A}-$B", {"A": "1"}) == "1-"


def test_the_last_rule_decides_what_is_sent() -> None:
    """A name with `!` comes back, and stays out again by a rule behind it; a folder stands for what is in it."""
    found = context.rules("*\n!kept\n# comment\n!list/*.txt\nkept/left\n**/__pycache__\n")

    sent = ("kept/a.py", "kept/deep/b.py", "list/pins.txt")
    left = [
        "other",
        "other/a",
        "kept/left",
        "kept/left/c.py",
        "kept/__pycache__/a.pyc",
        "list/deep/pins.txt",
        "list/a.md",
    ]
    assert not [name for name in sent if context.is_left_out(name, found)]
    assert [name for name in left if context.is_left_out(name, found)] == left
