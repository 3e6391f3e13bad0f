"""Files of passwords that several commands change at once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

from moor.secret_files import changes_credentials, known_passwords, write_private

MANY = 8


@changes_credentials
def add_user(name: str, *, credentials: Path | None) -> None:
    known = known_passwords(credentials)
    # Others have read the file by now, if they may.
    sleep(0.02)
    if credentials is not None:
        write_private(credentials, {**known, name: "secret"})


def test_no_password_is_lost_when_several_commands_add_one(tmp_path: Path) -> None:
    file = tmp_path / "credentials.toml"
    with ThreadPoolExecutor(MANY) as pool:
        list(pool.map(lambda number: add_user(f"user-{number}", credentials=file), range(MANY)))
    assert known_passwords(file) == {f"user-{number}": "secret" for number in range(MANY)}
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
