from pathlib import Path

from baton.deploy.logs import LogFollower, cause, last_lines
from tests.support.waiting import eventually


def test_lines_are_shown_behind_their_process_as_they_come(tmp_path: Path) -> None:
    """Prefixes are aligned, files may appear late, half a line waits for its other half; what is written over is not shown."""
    files = {"proxy": tmp_path / "proxy.log", "prefill-0": tmp_path / "prefill-0.log"}
    shown: list[str] = []
    follower = LogFollower(files, shown.append, everything=False)
    follower.start()

    files["prefill-0"].write_text("one\ntw")
    eventually(lambda: bool(shown))
    with files["prefill-0"].open("a") as log:
        log.write("o\n")
    files["proxy"].write_text("50 %\rthree\n")
    follower.stop()

    assert shown[0] == "prefill-0 | one"
    assert set(shown[1:]) == {"prefill-0 | two", "proxy     | three"}


def test_noise_is_left_out_unless_everything_is_asked_for(tmp_path: Path) -> None:
    """What every start says is not shown, errors are."""
    log = tmp_path / "log"
    log.write_text(
        "(APIServer pid=7) WARNING 11-20 13:22:02 [arg_utils.py:1] seed\n"
        "INFO:     Started server process [7]\n"
        "E1120 13:22:02.1 7 transfer.cpp:1] Local segment descriptor not found\n"
        "Loading safetensors: 100% 1/1 [00:00<00:00, 80.1it/s]\n"
        "\n"
        "(EngineCore pid=8) ERROR 11-20 13:22:02 [core.py:1] broken\n"
        "prefill node: the port is taken\n"
    )

    shown = followed(log, everything=False)

    assert shown == [
        "x | (EngineCore pid=8) ERROR 11-20 13:22:02 [core.py:1] broken",
        "x | prefill node: the port is taken",
    ]
    assert len(followed(log, everything=True)) == 7


def test_the_end_of_a_log_and_the_cause_that_it_names(tmp_path: Path) -> None:
    """A short log is given whole, a missing one is empty. The cause is the last error of our own, above what vLLM ends with."""
    log = tmp_path / "log"
    assert (last_lines(log), cause(log)) == ([], "")
    log.write_text("".join(f"{number}\n" for number in range(30)))
    assert (last_lines(log, 2), len(last_lines(log, 50))) == (["28", "29"], 30)

    theirs = "RuntimeError: Engine core initialization failed. See root cause above.\n"
    log.write_text(theirs)
    assert cause(log) == ""
    told = "(EngineCore pid=7) ERROR 11-22 10:00:00 [core.py:9]"
    log.write_text(
        f'{told}   File "kv_connector/layout/groups.py", line 136, in groups_of\n'
        f"{told} baton.kv_connector.errors.ConnectorConfigError: without the cache only\n{theirs}"
    )
    assert cause(log) == "without the cache only"


def followed(log: Path, *, everything: bool) -> list[str]:
    """Return what a follower shows of a finished log."""
    shown: list[str] = []
    follower = LogFollower({"x": log}, shown.append, everything=everything)
    follower.start()
    follower.stop()
    return shown
