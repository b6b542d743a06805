"""What every engine promises, as checks that any engine can be put through.

A test module says how its engine is made and what it can do, puts one running engine through `checks_for` and fresh
ones through `life_checks`; `tests/engine/test_contract.py` is the example. Every answer that a check reads is held
against the laws that all answers obey (`reading`).
"""

import asyncio

import pytest

ROOMS = ("answers", "constraints", "crowds", "harness", "life", "reading", "sampling", "surroundings")
pytest.register_assert_rewrite(*(f"{__name__}.{room}" for room in ROOMS))

from tests.engine.contract import answers, constraints, crowds, sampling, surroundings  # noqa: E402
from tests.engine.contract.harness import Check, Factory, LifeCheck, Running, Traits, started  # noqa: E402
from tests.engine.contract.life import life_checks  # noqa: E402

__all__ = [
    "Check",
    "Factory",
    "LifeCheck",
    "Running",
    "Traits",
    "checks_for",
    "life_checks",
    "name_of",
    "run",
    "run_life",
    "started",
]


def checks_for(traits: Traits) -> list[Check]:
    """What a running engine with these traits is put through."""
    rooms = (answers, sampling, constraints, crowds, surroundings)
    return [check for room in rooms for check in room.checks(traits)]


def name_of(check: Check | LifeCheck) -> str:
    """For the test's id."""
    return getattr(check, "__name__", "check")


async def run(check: Check, running: Running) -> None:
    """One check on a running engine, which is at rest afterwards."""
    async with asyncio.timeout(running.traits.patience_s):
        await check(running)
        await running.rests()


async def run_life(check: LifeCheck, make: Factory, traits: Traits) -> None:
    """One check on fresh engines."""
    async with asyncio.timeout(traits.patience_s):
        await check(make, traits)
