"""Files of one password each, and new passwords."""

import stat
from pathlib import Path

from bus.addresses import ADDRESSES
from kit.urls import read_secret
from moor.secret_files import files_of_passwords


def test_a_url_names_the_file_and_the_file_has_the_password(tmp_path: Path) -> None:
    files = files_of_passwords(tmp_path / "made here, too", "broker")
    url = files.login("amqps://root:r@h:1/v?cafile=/ca.pem&auth=external", "moor-a", "p@/:")

    assert url == (
        f"amqps://moor-a@h:1/v?cafile=/ca.pem&passwordfile={tmp_path}/made%20here%2C%20too/moor-a.broker"
    )
    assert ADDRESSES.read({"MOOR_BUS_URL": url}).bus_url == url
    assert files.write({"moor-a": "p@/:"}).endswith("written: moor-a")
    assert files.write({"moor-a": "p@/:"}).endswith("as it was")
    file = tmp_path / "made here, too" / "moor-a.broker"
    assert read_secret(str(file)) == "p@/:"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert files.write({"moor-a": "new", "moor-b": "x"}).endswith("written: moor-a, moor-b")
    assert read_secret(str(file)) == "new"
