"""Matrix products over several processes, on MPI: `mpirun -n 4 python program.py`.

`layout` is the arithmetic of block-cyclic distributions and needs no MPI.
"""
