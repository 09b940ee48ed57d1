"""HAZARDS 1 in its smallest form: a sweep in one process, two devices, and a rank that fails in the first job."""

import hydra
import torch
from lightning.fabric import Fabric
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path=None)
def main(cfg: DictConfig) -> None:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    if fabric.global_rank == 1 and cfg.job == 0:
        raise RuntimeError("rank 1 fails in job 0")
    jobs = fabric.all_gather(torch.tensor(cfg.job)).tolist()
    print(f"rank {fabric.global_rank} of job {cfg.job} met the ranks of jobs {jobs}", flush=True)


if __name__ == "__main__":
    main()
