"""A planted bug whose place is gone is an error, also of a run that plants none."""

from tests.planted import BUGS


def test_every_planted_bug_fits_the_product() -> None:
    for bug in BUGS.values():
        with bug():
            pass
