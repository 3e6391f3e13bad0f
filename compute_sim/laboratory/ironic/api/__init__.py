"""The part of Ironic's REST API that bare-metal clients use, on top of a SimulatedIronic."""
