"""Many runs: as processes on this machine, or as Slurm jobs. Imports no torch."""
