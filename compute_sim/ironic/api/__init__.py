"""The part of Ironic's REST API that bare-metal clients use, over a SimulatedIronic."""
