"""What the simulated Ironic decides: pure functions over frozen values, the time an argument."""
