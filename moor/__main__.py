"""The `moor` command: one file a group of commands; here they come together."""

import typer

from moor import broker_command, db_command, dead_command, demo_command, run_command

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Moorage decides where instances run, and makes it happen.",
    pretty_exceptions_show_locals=False,
)
app.command("demo")(demo_command.demo)
app.command("run")(run_command.run_worker)
app.add_typer(broker_command.app, name="broker")
app.add_typer(dead_command.app, name="dead")
app.add_typer(db_command.app, name="db")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
