"""Reads a fault script from a TOML or JSON file. faults.py says what it means, and laboratory/ironic/script.py for Ironic.

    seed = 7
    spawn_ms = 50.0

    [[faults]]                  # one build in twenty fails, on any host
    is = "fails_to_build"
    probability = 0.05

    [[faults]]                  # a tenth of the hosts is silent for a minute, every ten minutes
    is = "falls_silent"
    share = 0.1
    after_s = 60
    for_s = 60
    every_s = 600

    [[faults]]                  # one host loses half of its CPUs for good
    is = "changes"
    hosts = ["c1-host-00007"]
    after_s = 30
    vcpus = -16

    [[faults]]                  # and another one is hot for ten minutes, as its metrics tell
    is = "changes"
    hosts = ["c1-host-00008"]
    after_s = 30
    for_s = 600
    metrics = { temperature = 95.0 }

    [[faults]]                  # no instance arrives on a host for five minutes
    is = "fails_to_receive"
    hosts = ["c1-host-00009"]
    for_s = 300

Others: fails_to_stop, fails_to_start (reason, probability, as the two above); builds_slowly (spawn_ms, probability),
receives_slowly (receive_ms), stops_slowly (stop_ms), starts_slowly (start_ms); comes_back_late, dies. A script
may also have receive_ms, stop_ms and start_ms.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


class BadScript(ValueError):  # noqa: N818 - named for what it is
    """The file is not a valid fault script; the message names the wrong field."""


def load_script(path: Path, kind: type[T]) -> T:
    decode = msgspec.toml.decode if path.suffix == ".toml" else msgspec.json.decode
    try:
        return decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as problem:
        raise BadScript(f"fault script {path}: {problem}") from problem
