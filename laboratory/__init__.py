"""What tries a cloud out: demo, load, simulated hosts and a simulated Ironic, faults, private servers, and a check for computes.

`moor` finds its commands by an entry point, and reads of them only this.
"""

_PANEL = "To try and to measure"
COMMANDS = {
    "demo": (
        _PANEL,
        "laboratory.demo",
        "demo",
        "Watch a thousand boots over two hundred hosts in two cells, some of which misbehave.",
    ),
    "load": (
        _PANEL,
        "laboratory.load.command",
        "load",
        "Build many instances, as fast as possible or at a rate, measure the time and cost of each, and audit the result.",
    ),
    "replay": (
        _PANEL,
        "laboratory.replay.command",
        "replay",
        "Play a trace of arrivals against the choice of hosts, and say what each policy refuses.",
    ),
}
