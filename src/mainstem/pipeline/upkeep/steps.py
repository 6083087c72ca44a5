"""The steps of maintenance, one after the other, whatever format the table has."""

from collections.abc import Callable, Mapping, Sequence

from mainstem.tables.maintenance import Step

# What a step did, by name. Only numbers: they are added up in the metrics.
Done = dict[str, int]
OnProgress = Callable[[Step, Mapping[str, int]], None]


def run_steps(
    steps: Sequence[Step],
    work: Mapping[Step, Callable[[], Done]],
    on_progress: OnProgress,
    go_on: Callable[[], bool],
) -> dict[str, Done]:
    """Do those that are asked for, in their own order; returns what each did. Ends early where it may not go on."""
    results: dict[str, Done] = {}
    for step in [step for step in Step if step in steps]:
        if not go_on():
            break
        results[step] = work[step]()
        on_progress(step, results[step])
    return results
