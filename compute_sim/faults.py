"""Reads a fault script from a TOML or JSON file. core/faults.py says what it means.

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

Others: builds_slowly (spawn_ms, probability), comes_back_late, dies.
"""

from pathlib import Path

import msgspec

from compute_sim.core.faults import FaultScript


class BadScript(ValueError):  # noqa: N818 - named for what it is
    """The file is not a valid fault script; the message names the wrong field."""


def load_faults(path: Path) -> FaultScript:
    try:
        text = path.read_bytes()
        if path.suffix == ".toml":
            return msgspec.toml.decode(text, type=FaultScript)
        return msgspec.json.decode(text, type=FaultScript)
    except (OSError, msgspec.DecodeError) as problem:
        raise BadScript(f"fault script {path}: {problem}") from problem
