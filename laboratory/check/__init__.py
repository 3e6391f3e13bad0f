"""`python -m laboratory.check`: does a compute, in whatever language, keep the contract of docs/write-a-compute.md?"""
