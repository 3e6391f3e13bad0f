"""`moor shadow`: what this scheduler would have chosen for a Nova, beside what Nova chose."""
