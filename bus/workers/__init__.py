"""Workers and those who ask them: the loop of a worker, its intake, questions and answers, what it publishes."""
