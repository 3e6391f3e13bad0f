"""The kept schemas of Nova's databases are those of its migrations."""

import pytest

from tests.nova.schema import SCHEMAS, schemas_of_migrations

# Nova and Placement are installed first; that takes minutes.
pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


@pytest.mark.parametrize("old", [False, True], ids=["newest", "oldest"])
def test_the_kept_schemas_are_what_the_migrations_make(*, old: bool) -> None:
    made = schemas_of_migrations(old=old)
    assert made == {file: file.read_text() for file in made}
    assert all(file.parent == SCHEMAS for file in made)
