"""Processes and devices: how many there are, who started them, what they can do."""

import ctypes
import logging
import os
import sys
import warnings
from dataclasses import dataclass

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.fabric.utilities.warnings import PossibleUserWarning

from experiment.config.schema import Config
from experiment.errors import ConfigError
from experiment.model.size import PEAK_FLOPS


def peak_flops(device: torch.device) -> float | None:
    """bf16 peak of a GPU by its name; None where it is not known, for then there is no MFU to state."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    if "PCIe" in name or "NVL" in name:  # same names, lower clocks
        return None
    return next((peak for key, peak in PEAK_FLOPS.items() if key in name), None)


@dataclass(frozen=True)
class Processes:
    """The processes of a run, known before any of them talks to another."""

    environment: ClusterEnvironment
    devices: int
    """Processes per node."""
    num_nodes: int
    rank: int
    accelerator: str

    @property
    def world_size(self) -> int:
        return self.devices * self.num_nodes

    @property
    def is_leader(self) -> bool:
        return self.rank == 0


def find_processes(config: Config) -> Processes:
    """Read them from torchrun, Slurm or the config. Raises ConfigError where these disagree."""
    _hush()
    t = config.trainer
    accelerator = t.accelerator
    if accelerator == "auto":
        accelerator = "gpu" if torch.cuda.is_available() else "cpu"
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise ConfigError(
            ["trainer.accelerator: gpu asked for, but this machine shows no CUDA device; use trainer=cpu"]
        )
    if TorchElasticEnvironment.detect():
        environment: ClusterEnvironment = TorchElasticEnvironment()
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        num_nodes = environment.world_size() // devices
        rank, started_by = environment.global_rank(), "torchrun"
    elif SLURMEnvironment.detect() and os.environ.get("SLURM_NTASKS", "1") != "1":
        environment = SLURMEnvironment(auto_requeue=False)  # we save and hand over ourselves
        num_nodes = int(os.environ.get("SLURM_NNODES", "1"))
        devices = environment.world_size() // num_nodes
        rank, started_by = environment.global_rank(), "Slurm"
    else:
        environment = LightningEnvironment()
        available = torch.cuda.device_count() if accelerator == "gpu" else 1
        devices, num_nodes = t.devices or available, t.num_nodes
        rank, started_by = environment.local_rank(), ""
        if devices > 1 and _in_a_sweep():
            raise ConfigError(
                [
                    f"trainer.devices: got {devices}, but Lightning would start the whole sweep again in each of its "
                    "processes; use hydra/launcher=process, which gives every run a process of its own"
                ]
            )
        if num_nodes > 1:
            raise ConfigError(["trainer.num_nodes: several nodes need torchrun or Slurm to start their processes"])
        if accelerator == "gpu" and devices > available:
            raise ConfigError([f"trainer.devices: got {devices}, but this machine has {available} GPUs"])
    if started_by and t.devices not in (None, devices):
        raise ConfigError([f"trainer.devices: got {t.devices}, but {started_by} started {devices} processes per node"])
    return Processes(environment, devices, num_nodes, rank, accelerator)


def _hush() -> None:
    """Lightning's advice concerns loaders, loops and launchers that this project replaces."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=PossibleUserWarning)
    warnings.filterwarnings("ignore", message=r".*`isinstance\(treespec, LeafSpec\)` is deprecated.*")


def _in_a_sweep() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN


def keep_freed_memory() -> None:
    """Tell glibc not to return freed memory to the system: big CPU tensors then reuse their pages.

    1.6 times the tokens per second at the tiny scale on two cores. Elsewhere than glibc: no effect.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        trim_threshold, top_pad, mmap_max = -1, -2, -4
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 2**28)
