"""The conductor's decisions and the rows that they are about. No clock, no random numbers, no input, no output."""
