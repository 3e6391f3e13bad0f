"""Clouds that exist: a scheduler in the place of nova-scheduler, shadow mode, and the import from Nova's databases.

`moor` finds its commands by an entry point, and reads of them only this.
"""

_PANEL = "Operating"
COMMANDS = {
    "nova": (
        _PANEL,
        "nova_bridge.importing.command",
        "app",
        "A Nova beside this cloud: take over what it has, and compare what both would choose.",
    ),
}
