"""Reads a fault script of a simulated Ironic from a TOML or JSON file. core/script.py says what it means.

    seed = 7

    [[faults]]                  # one deploy in twenty fails
    is = "work_fails"
    work = "deploy"
    probability = 0.05

    [[faults]]                  # a fifth of the `*.end` notifications is never published
    is = "loses"
    event_types = ["*.end"]
    probability = 0.2

    [[faults]]                  # nothing is published for ten seconds of each minute
    is = "loses"
    event_types = ["*"]
    after_s = 30
    for_s = 10
    every_s = 60

    [[faults]]                  # the BMC of each hundredth node is silent for five minutes
    is = "bmc_silent"
    share = 0.01
    for_s = 300

    [[faults]]                  # the API is down for a minute
    is = "away"
    after_s = 120
    for_s = 60
    refuses = true

Others: doubles, delays (late_s), node_locked.
"""

from pathlib import Path

import msgspec

from compute_sim.faults import BadScript
from compute_sim.ironic.core.script import IronicScript


def load_ironic_script(path: Path) -> IronicScript:
    try:
        text = path.read_bytes()
        if path.suffix == ".toml":
            return msgspec.toml.decode(text, type=IronicScript)
        return msgspec.json.decode(text, type=IronicScript)
    except (OSError, msgspec.DecodeError) as problem:
        raise BadScript(f"script {path}: {problem}") from problem
