"""`experiment.train` where writing a checkpoint takes longer than Lightning lets processes outlive one another."""

import time

from experiment.train import main
from experiment.training import checkpoints

SECONDS = 8.0
write = checkpoints.write_checkpoint


def slowly(*arguments):
    time.sleep(SECONDS)
    write(*arguments)


checkpoints.write_checkpoint = slowly

if __name__ == "__main__":
    main()
