"""Demo, load, the simulated Ironic, faults, and the contract check for computes. No room that runs in production imports it."""
