import re

import pytest

from baton.loadtest.report.html import standalone
from baton.loadtest.report.plots import HEIGHT, WIDTH, Labels, Picture, Scale, Series, line_plot, nice


@pytest.mark.parametrize(
    ("value", "end"),
    [(0.0, 1.0), (0.7, 0.8), (1.2, 1.25), (21, 25), (260, 300), (1e6, 1e6)],
)
def test_axes_end_at_round_numbers(value: float, end: float) -> None:
    """At the value or above it, after a few round steps; the last number stands at the end."""
    assert nice(value) == pytest.approx(end)
    ticks = Scale(nice(value)).ticks()
    assert ticks[0] == 0
    assert ticks[-1] == pytest.approx(end)
    assert 3 <= len(ticks) <= 7


def test_values_of_one_size_have_a_scale_from_0() -> None:
    """Half the end is in the middle. Without values there is an axis all the same."""
    scale = Scale.of([3.0, 5.0, 10.0])

    assert not scale.logarithmic
    assert [scale.share(value) for value in (0.0, 5.0, 10.0)] == [0.0, 0.5, 1.0]
    assert Scale.of([]) == Scale.of([0.0]) == Scale(1.0)


def test_one_value_far_from_all_others_makes_the_scale_logarithmic() -> None:
    """Equal factors are equal distances; what lies below the beginning is shown there, and the axis says what it is."""
    scale = Scale.of([*[20.0] * 99, 60_000.0])

    assert (scale.least, scale.most) == (10.0, 100_000.0)
    assert [scale.share(value) for value in (0.0, 10.0, 1000.0, 100_000.0)] == pytest.approx([0.0, 0.0, 0.5, 1.0])
    assert scale.ticks() == pytest.approx([10, 100, 1000, 10_000, 100_000])
    labels = Labels(name="n", title="t", description="d", x="TTFT (ms)", y="share")
    drawing = line_plot(labels, [Series("a", [(20.0, at / 100) for at in range(99)] + [(60_000.0, 1.0)])]).drawing
    assert ">TTFT (ms), logarithmic<" in drawing


def test_the_key_stands_below_the_drawing() -> None:
    """The drawing has its own size: stretched over the whole file it slid down, and its axis lay under the key."""
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img"></svg>'
    picture = Picture(title="T", keys=[], drawing=drawing)

    file = standalone(picture, ["a", "b"])

    inner = re.findall(r"<svg [^>]*>", file)[1]
    assert f'width="{WIDTH}"' in inner
    assert f'height="{HEIGHT}"' in inner
    assert [float(y) >= HEIGHT for y in re.findall(r"translate\(\S+ (\S+)\)", file)] == [True, True]
