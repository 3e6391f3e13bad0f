"""Clouds that exist: a scheduler in the place of nova-scheduler, shadow mode, and the import from Nova's databases.

`moor` finds its commands by an entry point, and reads of them only this.
"""

_PANEL = "Operating"
COMMANDS = {
    "import": (
        _PANEL,
        "nova_bridge.importing.command",
        "app",
        "Take over what another cloud has.",
    ),
    "shadow": (
        _PANEL,
        "nova_bridge.shadow.report_command",
        "app",
        "Shadow mode: what this scheduler would have chosen for a Nova, beside what Nova chose.",
    ),
}
