"""The site's page command-reference: every command with its arguments and options, from the commands themselves."""

import re
from collections.abc import Iterator
from typing import Any

from moor.commands import command_of, every
from tools.pages.markdown import table

# In a help, of an option whose value comes from the settings.
_VARIABLE = re.compile(r" ?\[env var: (\w+)\]")
HEAD = """# All commands and options

What `moor COMMAND --help` says, for all commands on one page. It is made from the code. [commands.md](commands.md) says what the commands are for, with
examples and exit codes; every option that has a variable may also stand in the settings file ([how](commands.md#settings)).
"""


def page() -> str:
    parts = [HEAD]
    panels = {name: panel for name, (panel, *_) in every().items()}
    for panel in dict.fromkeys(panels.values()):
        parts.append(f"## {panel}\n")
        for name, of in panels.items():
            if of == panel:
                parts += _sections(command_of(name), f"moor {name}")
    return "\n".join(parts)


def _sections(command: Any, words: str) -> Iterator[str]:
    subcommands = getattr(command, "commands", {})
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = " ".join(_argument(each) for each in shown if each.param_type_name == "argument")
    yield f"### `{' '.join(part for part in (words, arguments) if part)}`\n"
    if command.help:
        yield f"{_plain(command.help)}\n"
    if options := [_row(each) for each in shown if each.param_type_name == "option" or each.help]:
        yield f"{table(('option', 'meaning', 'variable', 'default'), options)}\n"
    for name, each in sorted(subcommands.items()):
        if not getattr(each, "hidden", False):
            yield from _sections(each, f"{words} {name}")


def _argument(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[]")
    return name if argument.required else f"[{name}]"


def _row(option: Any) -> tuple[str, str, str, str]:
    value = f" {option.metavar}" if option.metavar else ""
    words = [f"`{each}{value}`" for each in (*option.opts, *option.secondary_opts)]
    if option.param_type_name == "argument":
        words = [f"`{_argument(option)}`"]
    flags = ", ".join(words).replace("|", "\\|")
    text = _plain(option.help or "")
    variables = option.envvar or _VARIABLE.findall(text)
    names = (variables,) if isinstance(variables, str) else variables
    return flags, _VARIABLE.sub("", text), ", ".join(f"`{each}`" for each in names), _default(option)


def _default(option: Any) -> str:
    """Text alone: a callable default depends on the machine."""
    known = option.default
    if option.required or known is None or callable(known) or known is False or known in ("", (), []):
        return ""
    return "yes" if known is True else f"`{known}`"


def _plain(text: str) -> str:
    """One line, with what a Markdown table would take for its own escaped."""
    line = " ".join(text.split())
    return line.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
