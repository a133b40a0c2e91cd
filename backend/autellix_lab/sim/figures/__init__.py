"""The figures of the paper's evaluation, simulated: settings in, rows out."""
