"""A compute's own files on the host: they count as written once they are on stable storage, with their names."""

import os
from pathlib import Path

import pytest

from compute_sim.libvirt.disks import write_whole


def test_a_file_counts_as_written_when_it_and_its_name_are_on_stable_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stable: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda number: stable.append(os.fstat(number).st_ino))

    write_whole(tmp_path / "order.json", b"{}")

    assert stable == [(tmp_path / "order.json").stat().st_ino, tmp_path.stat().st_ino]
    with pytest.raises(OSError, match="Not a directory"):
        write_whole(tmp_path / "order.json" / "below a file", b"{}")
