"""The decisions of the simulated Ironic: pure functions over frozen values; the time is an argument."""
