"""Plot WER and CER on the development set over the hours of training audio, for all runs of the shipped model.

    python scripts/learning_curve.py [--add RUN --name C --from-hours 80]

The data is in training/curve.csv. --add appends the evaluations of a run folder (its progress.csv), offset by the hours
that its model was trained on before. Writes training/curve.png.
"""

import argparse
import csv
from itertools import groupby
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "training"
COLUMNS = ("run", "audio_hours", "dev_cer", "dev_wer")


def evaluations(run: Path, name: str, from_hours: float) -> list[dict[str, str]]:
    """The evaluations of a run folder, each at the hours of the last logged step before it."""
    rows, hours = [], 0.0
    with (run / "progress.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            hours = float(line["hours_seen"] or hours)
            if line["dev_wer"]:
                cer, wer = (f"{100 * float(line[key]):.2f}" for key in ("dev_cer", "dev_wer"))
                rows.append(
                    {"run": name, "audio_hours": f"{from_hours + hours:.1f}", "dev_cer": cer, "dev_wer": wer}
                )
    return rows


def draw(rows: list[dict[str, str]], file: Path) -> None:
    """WER solid, CER dashed, one color per run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        xlabel="hours of training audio",
        ylabel="greedy error rate on dev in %: WER, dashed CER",
        ylim=(0, 102),
    )
    for number, (run, group) in enumerate(groupby(rows, key=lambda row: row["run"])):
        points = list(group)
        hours = [float(point["audio_hours"]) for point in points]
        for key, style in (("dev_wer", "o-"), ("dev_cer", "s--")):
            axes.plot(
                hours,
                [float(point[key]) for point in points],
                style,
                color=f"C{number}",
                markersize=3,
                label=f"run {run}" if key == "dev_wer" else None,
            )
    for wer, label in ((25, "first milestone"), (12, "goal")):
        axes.axhline(wer, color="grey", linewidth=0.8, linestyle=":")
        axes.text(0, wer + 1, f"{label}: {wer} % WER", color="grey", fontsize=8)
    figure.legend(fontsize=8, ncols=6, loc="outside upper center")
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=110)


def main() -> None:
    """Append a run if asked, then plot."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--add", type=Path, metavar="RUN", help="run folder to append")
    parser.add_argument("--name", default="next", help="name of the run (default: next)")
    parser.add_argument(
        "--from-hours",
        type=float,
        default=0.0,
        help="hours that its model was trained on before (default: 0)",
    )
    arguments = parser.parse_args()
    history = FOLDER / "curve.csv"
    with history.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] != arguments.name or not arguments.add]
    if arguments.add:
        rows += evaluations(arguments.add, arguments.name, arguments.from_hours)
        with history.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    draw(rows, FOLDER / "curve.png")


if __name__ == "__main__":
    main()
