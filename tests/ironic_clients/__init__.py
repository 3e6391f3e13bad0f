"""What operators and programs other than Moorage do with the nodes of a simulated Ironic: Moorage only sees what follows."""
