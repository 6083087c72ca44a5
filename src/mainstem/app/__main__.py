"""Where the `mainstem` command begins: as `python -m mainstem.app` too."""

import gc
import os


def main() -> None:
    """Load the command's modules and run it."""
    # Modules are made once and stay: to collect while they load is to look at them again and again, 0.1 s of the start.
    gc.disable()
    # numpy's own threads wait for linear algebra, which is not done here, and use a core for waiting.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from mainstem.app.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
