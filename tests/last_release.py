"""The last release, made from the repository's own history. Its programs run with the libraries of this environment.

RELEASES has a line for each release, the newest last: its version and its commit.
"""

import asyncio
import atexit
import io
import os
import subprocess
import sys
import tarfile
from asyncio.subprocess import Process
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec import Struct

ROOT = Path(__file__).parents[1]
# Its entry points, in place of those of the checkout that is installed.
METADATA = "from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel('.')"


class Release(Struct, frozen=True):
    version: str
    tree: Path

    async def start(self, module: str, *arguments: str, env: Mapping[str, str]) -> Process:
        """Run `python -m module` of this release."""
        return await self._started("-m", module, *arguments, env=env)

    async def run(self, *arguments: str, **env: str) -> None:
        """Run its `python` with these arguments, which must succeed."""
        process = await self._started(*arguments, env={"PATH": os.environ["PATH"], **env})
        assert await process.wait() == 0, f"{arguments} of {self.version} failed"

    async def _started(self, *arguments: str, env: Mapping[str, str]) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=self.tree,
            env={**env, "PYTHONPATH": str(self.tree)},
            stdin=asyncio.subprocess.DEVNULL,
        )


@cache
def last_release() -> Release:
    *_, last = (ROOT / "RELEASES").read_text().splitlines()
    version, commit = last.split()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.fail(
            f"RELEASES has {commit} as the commit of {version}, and this checkout has it not: get the whole history, as by "
            f"`git fetch --unshallow` ({archive.stderr.decode().strip()})"
        )
    folder = TemporaryDirectory(prefix=f"moorage-{version}-")
    atexit.register(folder.cleanup)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder.name, filter="data")
    subprocess.run([sys.executable, "-c", METADATA], cwd=folder.name, check=True, capture_output=True)
    return Release(version, Path(folder.name))
