"""Files of passwords that several commands change at once."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep

import pytest

from moor.secret_files import changes_credentials, known_passwords, replace_private, write_private

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


def test_a_command_without_a_file_or_with_an_impossible_one_runs(tmp_path: Path) -> None:
    add_user("ann", credentials=None)
    with pytest.raises(FileNotFoundError):
        add_user("ann", credentials=tmp_path / "nowhere" / "credentials.toml")


def test_only_the_owner_may_read_it_and_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    file = tmp_path / "etc.env"
    replace_private(file, "A=1\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(UnicodeEncodeError):
        replace_private(file, "\udc80")
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    assert file.read_text() == "A=1\n"
