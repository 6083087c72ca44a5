"""The seeds of long runs: `make soak SEED=7` is another run of every one of them, and SEED=1 the one that is known."""

import os
from collections.abc import Sequence

SEED = int(os.environ.get("SEED", "1"))
# Further than any run goes from its first seed on.
_STRIDE = 1_000_000


def soak_seed(first: int = 1) -> int:
    """The seed of a run that has one, or its first."""
    return first + (SEED - 1) * _STRIDE


def soak_seeds(first: int, count: int) -> Sequence[int]:
    """The seeds of a run that has several."""
    return range(soak_seed(first), soak_seed(first) + count)
