"""The compute of a cell: it controls hypervisors through drivers. So far the hypervisors are simulated, faults too."""
