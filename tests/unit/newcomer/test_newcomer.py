"""The newcomer's path: what the README says can be typed, and how a walk is judged and told."""

import re
import shlex
import subprocess

import pytest

from tests.newcomer.journey import wrong
from tests.newcomer.readme import README, ReadmeError, commands

TEXT = """# B

## Try it on a laptop

```sh
make serve    # it's long: don't wait
make test
```

```sh
curl -i http://127.0.0.1:8000/v1/models -d '{
  "a": 1}'
```

```sh
PREFILL=2 DECODE=2 PORT=9000 make serve
```

## More

```sh
curl http://127.0.0.1:1/
```
"""
ANSWER = 'HTTP/1.1 200 OK\r\nx-baton-path: disaggregated\r\n\r\n{"choices":[{}]}'


def test_the_readme_has_a_newcomers_commands() -> None:
    """A server, a request for it, and one more command for two nodes of each role; a shell can read each."""
    found = commands(README.read_text())

    assert shlex.split(found.serve, comments=True) == ["make", "serve"]
    assert shlex.split(found.more)[-2:] == ["make", "serve"]
    assert shlex.split(found.request)[:2] == ["curl", "-i"]
    for line in (found.serve, found.request, found.more, found.more_request):
        subprocess.run(["bash", "-n", "-c", line], check=True)


def test_commands_are_found_as_they_stand() -> None:
    """An apostrophe in a comment opens no quote, a quote holds lines together, other sections do not count."""
    found = commands(TEXT)

    assert found.serve == "make serve    # it's long: don't wait"
    assert found.request == "curl -i http://127.0.0.1:8000/v1/models -d '{\n  \"a\": 1}'"
    assert found.more_request == found.request.replace("8000", "9000")


@pytest.mark.parametrize(
    ("there", "not_there", "word"),
    [
        ("## Try it on a laptop", "## Try it", "no section"),
        ("make serve    #", "make run    #", "`make serve`"),
        ("curl -i", "wget", "a curl"),
        ("DECODE=2 ", "", "2P2D"),
        (":8000/", ":8001/", "port 8000"),
        ('  "a": 1}\'', '  "a": 1}', "a quote stays open"),
    ],
)
def test_a_readme_that_lacks_a_command_is_named(there: str, not_there: str, word: str) -> None:
    """What is missing, not where the walk would have stumbled."""
    with pytest.raises(ReadmeError, match=re.escape(word)):
        commands(TEXT.replace(there, not_there))


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (ANSWER, ""),
        (ANSWER.replace("200 OK", "503 Service Unavailable"), "the status"),
        (ANSWER.replace("disaggregated", "local"), "x-baton-path"),
        (ANSWER.replace("choices", "error"), "no choice"),
        ("", "the status"),
    ],
)
def test_an_answer_counts_if_it_came_over_both_nodes(answer: str, word: str) -> None:
    """Anything else is named."""
    assert word in wrong(answer)
    assert bool(word) == bool(wrong(answer))
