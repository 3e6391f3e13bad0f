"""What the scheduler decides: plain functions over frozen values and columns, nothing else."""
