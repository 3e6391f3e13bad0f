"""What placement decides: plain functions over frozen values, nothing else."""
