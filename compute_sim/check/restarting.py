"""Runs the command with which an operator restarts the compute under check."""

import asyncio
import sys

from compute_sim.check.wire import CannotCheck


async def run_command(command: str, limit_s: float) -> None:
    """Run the command that restarts the compute; its output goes to the standard error."""
    process = await asyncio.create_subprocess_shell(
        command, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr
    )
    try:
        code = await asyncio.wait_for(process.wait(), limit_s)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise CannotCheck(
            f"the command {command!r} still runs after {limit_s:g} s: it must restart the compute and end"
        ) from None
    if code:
        raise CannotCheck(f"the command {command!r} ended with exit code {code}")
