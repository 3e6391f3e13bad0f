"""Everything that is only pretended: hosts that exist nowhere, their driver, and the faults that a script gives them."""
