"""Linear discriminants: read mixed rows without noise, and no more than the prior under much of it."""

import pytest

from attacks.inversion.inversion_cases import PUBLIC, ROWS, front, noise, target, texts
from dp_forward.attacks.inversion.discriminant import invert_linearly
from dp_forward.errors import InvalidInput
from dp_forward.privacy import NoiseSpec


@pytest.mark.parametrize(
    ("family", "cut", "least"),
    [("bert", "encoder.1", 0.9), ("gpt2", "encoder.1", 0.5), ("bert", "output", 0.5)],
)
def test_without_noise_a_cut_that_mixes_rows_is_read(family: str, cut: str, least: float) -> None:
    told: list[int] = []
    result = invert_linearly(target(front(cut, family=family), None), PUBLIC, progress=told.append)
    assert result.success > least
    assert result.low > result.chance
    assert result.ceiling is None
    assert (told[-1], told) == (len(PUBLIC), sorted(told))


@pytest.mark.parametrize(
    ("cut", "mechanism"),
    [(cut, name) for cut in ("encoder.1", "output") for name in ("privunit", "matrix-gaussian", "mvg")]
    + [("output", "k-ary-response")],
)
def test_under_strong_noise_of_any_shape_the_prior_is_left(cut: str, mechanism: str) -> None:
    shape = {"rows": 1 if cut == "output" else ROWS, "columns": 32}
    strong = NoiseSpec(mechanism=mechanism, epsilon=0.5, **shape).build()
    result = invert_linearly(target(front(cut), strong), PUBLIC)
    assert result.low < result.chance + 0.05
    assert result.within_ceiling


def test_averaged_releases_are_read_better() -> None:
    once, often = (
        invert_linearly(target(front("encoder.1"), noise(8.0), releases=k), PUBLIC) for k in (1, 60)
    )
    assert often.success > once.success + 0.1


def test_public_texts_of_another_length_are_refused() -> None:
    with pytest.raises(InvalidInput, match="public"):
        invert_linearly(target(front("encoder.1"), None), texts(20, seed=3, rows=9))
