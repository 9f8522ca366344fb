"""One function on many processes: local ones, MPI ranks or ipyparallel engines.

`with local(4) as ranks: results = ranks.run(fn, *args, timeout_s=60)`. This is the one place in
perfkit that starts processes, and it ends only those that it started.
"""

from perfkit.ranks.base import Caps, Rank, RankError, Ranks, RanksTimeout
from perfkit.ranks.engines import engines
from perfkit.ranks.local import local
from perfkit.ranks.mpi import mpi
from perfkit.ranks.site import site_config

__all__ = [
    "Caps",
    "Rank",
    "RankError",
    "Ranks",
    "RanksTimeout",
    "engines",
    "local",
    "mpi",
    "site_config",
]
