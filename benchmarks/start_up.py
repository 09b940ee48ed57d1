"""Start of every front door: python benchmarks/start_up.py [rounds]

Each command in a process of its own, in turn; prints the median seconds and their ratio to `python -c pass`.
"""

import subprocess
import sys
import time
from statistics import median

from measuring import keep

DOORS = ("train", "runs", "prepare", "tokenizers", "evaluate", "report", "export")


def seconds(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def main(rounds: int) -> None:
    commands = {"python -c pass": ["-c", "pass"], "runs": ["-m", "experiment.runs"]}
    commands |= {f"{door} --help": ["-m", f"experiment.{door}", "--help"] for door in DOORS}
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, arguments in commands.items():
            found[name].append(seconds(arguments))
    medians = {name: median(values) for name, values in found.items()}
    for name, value in medians.items():
        print(f"{name:20} {value:6.2f} s  x {value / medians['python -c pass']:.0f}")
    keep("start_up", {"seconds": medians})


if __name__ == "__main__":
    main(int((sys.argv[1:2] or [5])[0]))
