"""The life of the model in the box as a picture: word and character errors on dev by hours heard, run after run.

    python scripts/learning_curve.py [--add RUN --name C --from-hours 80]

training/curve.csv holds what every run measured; --add puts a run's folder (its progress.csv) behind it, with the hours
that its model had heard before. Draws training/curve.png.
"""

import argparse
import csv
from itertools import groupby
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "training"
COLUMNS = ("run", "hours_seen", "dev_cer", "dev_wer")


def added(run: Path, name: str, from_hours: float) -> list[dict[str, str]]:
    """The evaluations of a run's folder; each stands at the hours that the last logged step had heard."""
    rows, hours = [], 0.0
    with (run / "progress.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            hours = float(line["hours_seen"] or hours)
            if line["dev_wer"]:
                cer, wer = (f"{100 * float(line[key]):.2f}" for key in ("dev_cer", "dev_wer"))
                rows.append(
                    {"run": name, "hours_seen": f"{from_hours + hours:.1f}", "dev_cer": cer, "dev_wer": wer}
                )
    return rows


def draw(rows: list[dict[str, str]], file: Path) -> None:
    """Words above, characters below, a colour a run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        xlabel="hours heard", ylabel="wrong on dev, greedy (%): words, dashed characters", ylim=(0, 102)
    )
    for number, (run, group) in enumerate(groupby(rows, key=lambda row: row["run"])):
        points = list(group)
        hours = [float(point["hours_seen"]) for point in points]
        for key, style in (("dev_wer", "o-"), ("dev_cer", "s--")):
            axes.plot(
                hours,
                [float(point[key]) for point in points],
                style,
                color=f"C{number}",
                markersize=3,
                label=f"run {run}" if key == "dev_wer" else None,
            )
    for share, what in ((25, "first milestone"), (12, "goal")):
        axes.axhline(share, color="grey", linewidth=0.8, linestyle=":")
        axes.text(0, share + 1, f"{what}: {share} % of words", color="grey", fontsize=8)
    figure.legend(fontsize=8, ncols=6, loc="outside upper center")
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


def main() -> None:
    """Add, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--add", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--name", default="next", help="what to call it")
    parser.add_argument("--from-hours", type=float, default=0.0, help="what its model had heard before it")
    arguments = parser.parse_args()
    history = FOLDER / "curve.csv"
    with history.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] != arguments.name or not arguments.add]
    if arguments.add:
        rows += added(arguments.add, arguments.name, arguments.from_hours)
        with history.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    draw(rows, FOLDER / "curve.png")


if __name__ == "__main__":
    main()
