"""What a conductor decides, and the rows it decides on. No clock, no chance, no input and no output."""
