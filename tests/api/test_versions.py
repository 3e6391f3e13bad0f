"""Which microversion does a header ask for?"""

from http import HTTPStatus

import pytest

from placement_worker.api.values import NEWEST, OLDEST, ApiError, Version, version_asked


@pytest.mark.parametrize(
    ("header", "version"),
    [
        ("", OLDEST),
        ("placement 1.7", (1, 7)),
        ("placement latest", NEWEST),
        ("PLACEMENT   1.7", (1, 7)),
        ("compute 2.95", OLDEST),
        ("compute 2.95, placement 1.30", (1, 30)),
        ("placement 1.2, placement 1.3", (1, 3)),
        ("placement 1.2, , placement 1.3", (1, 3)),
        ("placement 1.2, compute 2.1", (1, 2)),
        ("placement", OLDEST),
        ("placement +1.+7", (1, 7)),
        ("placement 1.-0", OLDEST),
    ],
)
def test_the_last_word_about_placement_counts_and_without_one_it_is_the_oldest(
    header: str, version: Version
) -> None:
    assert version_asked(header) == version


@pytest.mark.parametrize("word", ["0.5", "1.40", "2.0", "9999.9999", "1.-1", "-1.2"])
def test_a_version_that_is_not_served_is_refused_with_those_that_are(word: str) -> None:
    with pytest.raises(ApiError, match=r"1\.0.*1\.39") as refused:
        version_asked(f"placement {word}")
    assert refused.value.status is HTTPStatus.NOT_ACCEPTABLE
    assert refused.value.extra == {"min_version": "1.0", "max_version": "1.39"}


@pytest.mark.parametrize(
    "word", ["pony.horse", "1.2.3", "1", "1.", ".1", "1.--2", "1.3_9", "1.²", "1. 2", "1." + "9" * 5000]
)
def test_what_is_no_version_is_refused_by_its_words(word: str) -> None:
    with pytest.raises(ApiError, match=r"X\.Y") as refused:
        version_asked(f"placement {word}")
    assert refused.value.status is HTTPStatus.BAD_REQUEST
