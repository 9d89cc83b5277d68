"""Long work in small transactions: between two of them the store belongs to others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

LONGEST_PAUSE_SECONDS: Final = 0.05


@asynccontextmanager
async def paced() -> AsyncGenerator[None]:
    """A step of long work, after which nothing happens for as long as it took.

    So other processes see a lock that is free half of the time, and not one that is taken again at once.
    """
    begun = time.monotonic()
    yield
    await asyncio.sleep(min(time.monotonic() - begun, LONGEST_PAUSE_SECONDS))
