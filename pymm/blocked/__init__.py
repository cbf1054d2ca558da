"""Products in blocks, in one process: matrices larger than a device, and several devices of one
host. A tile of C stays on a device while panels of A and B stream past it.
"""
