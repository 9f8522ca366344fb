"""`python -m perfkit.ranks local|mpi` is how perfkit starts a rank; people have no use for it."""

import sys

from perfkit.ranks.worker import main

main(sys.argv[1])
