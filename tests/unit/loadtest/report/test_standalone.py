import re

from baton.loadtest.report.plots import HEIGHT, WIDTH, Picture
from baton.loadtest.report.standalone import standalone


def test_the_key_stands_below_the_drawing() -> None:
    """The drawing has its own size: stretched over the whole file it slid down, and its axis lay under the key."""
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"></svg>'
    picture = Picture(title="T", keys=[], drawing=drawing)

    file = standalone(picture, ["a", "b"])

    inner = re.findall(r"<svg [^>]*>", file)[1]
    assert f'width="{WIDTH}"' in inner
    assert f'height="{HEIGHT}"' in inner
    assert [float(y) >= HEIGHT for y in re.findall(r"translate\(\S+ (\S+)\)", file)] == [True, True]
