"""Files of passwords."""

import logging
from pathlib import Path

import pytest

from bus.addresses import ADDRESSES
from kit.settings import BadSetting
from kit.urls import SECRET_BYTES_MAX, BadSecretFile, read_secret


def written(directory: Path, content: bytes, mode: int = 0o600) -> str:
    file = directory / "password"
    file.write_bytes(content)
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"one\ntwo\n", "has several lines"),
        (b"one\n\n", "has several lines"),
        (b"no\0", "has several lines"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"x" * (SECRET_BYTES_MAX + 1), f"has more than {SECRET_BYTES_MAX} bytes"),
    ],
)
def test_another_content_is_refused_without_being_shown(tmp_path: Path, content: bytes, why: str) -> None:
    file = written(tmp_path, content)

    with pytest.raises(BadSecretFile, match=why) as refused:
        read_secret(file)

    assert file in str(refused.value)
    assert "one\n" not in str(refused.value)


def test_a_file_that_everybody_may_read_is_told_once_for_each_mode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path, b"s3cret", 0o640)
    with caplog.at_level(logging.WARNING):
        read_secret(file)
        assert caplog.messages == []
        for mode in (0o644, 0o644, 0o666, 0o600, 0o644):
            Path(file).chmod(mode)
            read_secret(file)

    assert [message.partition("(mode ")[2][:4] for message in caplog.messages] == ["0644", "0666", "0644"]
    assert all("chmod 600 or 640" in message and file in message for message in caplog.messages)
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("variable", ["MOOR_BUS_URL", "MOOR_DB_URL", "MOOR_IRONIC_BUS_URL"])
@pytest.mark.parametrize(
    ("login", "query", "why"),
    [
        (
            "moor:secret@",
            "passwordfile=/etc/p",
            "it has a password and passwordfile=/etc/p: leave one of them out",
        ),
        ("moor@", "passwordfile=", "its passwordfile must be one file, not ''"),
        ("moor@", "passwordfile=/a&passwordfile=/b", "its passwordfile must be one file, not '/a' and '/b'"),
    ],
)
def test_a_url_names_one_file_or_a_password(variable: str, login: str, query: str, why: str) -> None:
    scheme = "postgresql" if "DB" in variable else "amqp"

    with pytest.raises(BadSetting) as refused:
        ADDRESSES.read({variable: f"{scheme}://{login}host/name?{query}"})

    assert why in str(refused.value)
    assert variable in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("amqps://moor@mq/?auth=kerberos", "its auth is 'kerberos', must be plain"),
        ("amqp://moor@mq/?auth=external&certfile=/c", "needs amqps:// and a certificate"),
        ("amqps://moor@mq/?auth=external", "needs amqps:// and a certificate"),
        ("amqps://mq/?auth=external&certfile=/c", "it names no user"),
        ("amqps://moor:x@mq/?auth=external&certfile=/c", "it has a password: leave one of them out"),
        ("amqps://moor@mq/?auth=external&certfile=/c&passwordfile=/p", "it has a password"),
    ],
)
def test_a_login_by_a_certificate_needs_all_of_it(url: str, why: str) -> None:
    with pytest.raises(BadSetting, match=why):
        ADDRESSES.read({"MOOR_BUS_URL": url})
