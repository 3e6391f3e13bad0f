"""AsyncAPI's own published parser reads our document: `python -m tests.conformance.asyncapi_parser`.

It needs npm, and installs the parser beside the other clients. The exit code is 1 if the parser finds an error or a
warning.
"""

import json
import shutil
import subprocess
import sys

from tests.environments import DIRECTORY
from tools.pages.bus_reference import asyncapi

PACKAGE = "@asyncapi/parser@^3"
WORST_ALLOWED = 2
# The parser prints one line for each problem, the severity first: 0 is an error, 1 a warning, 2 and 3 are hints.
PROGRAM = """
import { Parser } from "@asyncapi/parser";
import { readFileSync } from "fs";
for (const each of await new Parser().validate(readFileSync(process.argv[2], "utf8")))
  console.log(each.severity, each.path.join("/"), each.message);
"""


def main() -> int:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        sys.exit("npm and node are missing: AsyncAPI's parser needs them")
    here = DIRECTORY / "asyncapi"
    here.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        (npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(here), PACKAGE), check=True
    )
    program = here / "validate.mjs"
    program.write_text(PROGRAM)
    document = here / "asyncapi.json"
    document.write_text(json.dumps(asyncapi()))
    said = subprocess.run(
        (node, str(program), str(document)), check=True, text=True, stdout=subprocess.PIPE
    ).stdout.splitlines()
    minded = [line for line in said if int(line.split()[0]) < WORST_ALLOWED]
    print("\n".join(minded or [f"{document.name}: no problem found"]))
    return bool(minded)


if __name__ == "__main__":
    sys.exit(main())
