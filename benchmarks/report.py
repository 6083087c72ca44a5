"""Collects figures, prints them as tables, writes them as JSON, and plots them."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One measured value, beside its floor or peer, with the bar it has to meet."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_name: str | None = None
    bar: str | None = None
    met: bool | None = None
    note: str | None = None


@dataclass
class Report:
    """Everything measured in one run."""

    sections: dict[str, list[Figure]] = field(default_factory=dict)

    def add(self, section: str, figure: Figure) -> None:
        """Keep a figure, and say it at once: a run may be long."""
        self.sections.setdefault(section, []).append(figure)
        beside = f"   {figure.floor_name}: {_number(figure.floor)} {figure.unit}" if figure.floor is not None else ""
        print(f"  {section}: {figure.name} = {_number(figure.value)} {figure.unit}{beside}", flush=True)

    @property
    def missed(self) -> list[Figure]:
        """The figures that do not meet their bar."""
        return [f for figures in self.sections.values() for f in figures if f.met is False]

    def print(self) -> None:
        """A table per section."""
        console = Console(width=150)
        for section, figures in self.sections.items():
            table = Table(title=section, title_justify="left")
            for heading in ("figure", "measured", "beside", "bar", "met", "note"):
                table.add_column(heading, justify="right" if heading in ("measured", "beside") else "left")
            for figure in figures:
                beside = f"{figure.floor_name}: {_number(figure.floor)}" if figure.floor is not None else ""
                met = {True: "yes", False: "NO", None: ""}[figure.met]
                measured = f"{_number(figure.value)} {figure.unit}"
                table.add_row(figure.name, measured, beside, figure.bar or "", met, figure.note or "")
            console.print(table)
        for figure in self.missed:
            console.print(f"missed: {figure.name}: {_number(figure.value)} {figure.unit}, bar {figure.bar}")

    def write(self, folder: Path) -> None:
        """`bench.json` and `bench.png`."""
        folder.mkdir(parents=True, exist_ok=True)
        machine = {"machine": platform.machine(), "python": platform.python_version(), "system": platform.system()}
        sections = {name: [asdict(f) for f in figures] for name, figures in self.sections.items()}
        (folder / "bench.json").write_text(json.dumps({"machine": machine, "sections": sections}, indent=2) + "\n")
        _plot(self.sections, folder / "bench.png")


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of the values do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, max(0, -(-int(percent * len(ordered)) // 100) - 1))]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _plot(sections: dict[str, list[Figure]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(sections), 1, figsize=(10, 1.2 + 2.4 * len(sections)), squeeze=False)
    for axis, (section, figures) in zip(axes[:, 0], sections.items(), strict=True):
        names = [f"{f.name} ({f.unit})" for f in figures]
        axis.barh(names, [f.value for f in figures], height=0.38, align="edge", label="Mainstem", color="#2b6cb0")
        floors = [f.floor or 0 for f in figures]
        if any(floors):
            axis.barh(names, floors, height=-0.38, align="edge", label="floor or peer", color="#cbd5e0")
        axis.set_xscale("symlog")
        axis.set_title(section, loc="left")
        axis.invert_yaxis()
        axis.legend(loc="lower right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
