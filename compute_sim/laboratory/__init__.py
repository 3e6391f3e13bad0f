"""The laboratory of a compute, which is only pretended: hosts that exist nowhere, their driver, the faults that a script gives them; and a simulated Ironic."""
