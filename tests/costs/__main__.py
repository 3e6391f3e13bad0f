"""Prints the costs of all operations beside their figures."""

import asyncio

from tests.costs.judging import baseline, problems
from tests.costs.operations import OPERATIONS, START, costs_of


async def main() -> None:
    figures = baseline()
    for operation in (*OPERATIONS, START):
        costs = await costs_of(operation)
        for name, value in costs.items():
            known = [each.value for each in figures if (each.operation, each.what) == (operation, name)]
            print(f"{operation:20} {name:12} {value:10.2f}   figure {known[0] if known else 'none'}")
        print(*(f"  {each}\n" for each in problems(operation, costs, figures)), sep="", end="")


asyncio.run(main())
