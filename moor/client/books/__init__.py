"""`moor audit` compares the entries of placement, the API level, the cells and their hosts for each instance."""
