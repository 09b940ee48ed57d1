"""How the processes of one run agree on what to do.

The leader (rank 0) looks at the files, decides and posts stages; the others follow. It decides
before any process group exists, so building artifacts or waiting for a trunk runs into no timeout.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore

from experiment.errors import ExperimentError
from experiment.training.devices import Processes

ADDRESS = "EXPERIMENT_STAGE_STORE"
PORT_DISTANCE = 10_000  # Lightning gives Slurm jobs the 10,000 ports from 15,000 on
MEETING = timedelta(minutes=10)  # for the processes of one run to find each other
GOODBYE = timedelta(seconds=30)  # for them to part after an error
PATIENCE = timedelta(days=30)  # then a follower waits as long as its leader lives


@dataclass(frozen=True)
class Stage:
    """One call of fit."""

    run: str
    """`run`, or `trunk` for the run's trunk."""
    identity: dict[str, Any]
    checkpoint: str | None
    stop_step: int


class StageBoard:
    """A key-value store that lives as long as the leader; with one process it does nothing."""

    def __init__(self, processes: Processes):
        self._processes = processes
        self._number = 0
        self._store = self._open() if processes.world_size > 1 else None

    def _open(self) -> TCPStore:
        p = self._processes
        if p.environment.creates_processes_externally and ADDRESS not in os.environ:
            # torchrun and Slurm agree on a main port; ours is far from it, as neighbouring jobs have neighbouring ports
            host, main = p.environment.main_address, p.environment.main_port
            port = main + PORT_DISTANCE if main + PORT_DISTANCE < 2**16 else main - PORT_DISTANCE
        else:  # Lightning will start the others, and they inherit the environment
            host, port = "127.0.0.1", int(os.environ.get(ADDRESS, 0))
        try:
            store = TCPStore(host, port, is_master=p.is_leader, timeout=MEETING, wait_for_workers=False)
        except RuntimeError as error:
            what = "cannot be opened" if p.is_leader else "did not answer"
            raise ExperimentError(
                f"rank {p.rank}: the first process's store at {host}:{port} {what} ({error})"
            ) from error
        store.set_timeout(PATIENCE)
        os.environ.setdefault(ADDRESS, str(store.port))
        return store

    def __enter__(self) -> "StageBoard":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if self._store is None or not self._processes.is_leader:
            return
        self._store.set(f"stage/{self._number}", "")
        if self._number or self._processes.environment.creates_processes_externally:
            # the others exist, and the store must outlive their last look at it
            others = [f"left/{rank}" for rank in range(1, self._processes.world_size)]
            with suppress(RuntimeError):  # they died in a fit, and the leader is on its way out with an error
                self._store.wait(others, MEETING if error is None else GOODBYE)

    def post(self, stage: Stage) -> None:
        """The leader announces the fit that it is about to call."""
        if self._store is not None:
            self._store.set(f"stage/{self._number}", json.dumps(asdict(stage)))
        self._number += 1

    def stages(self) -> Iterator[Stage]:
        """What a follower has to do, until the leader leaves."""
        assert self._store is not None
        try:
            while text := self._store.get(f"stage/{self._number}").decode():
                self._number += 1
                yield Stage(**json.loads(text))
        except RuntimeError as error:
            raise ExperimentError(f"rank {self._processes.rank}: the first process of the run has gone") from error
        finally:
            with suppress(RuntimeError):
                self._store.set(f"left/{self._processes.rank}", "1")
