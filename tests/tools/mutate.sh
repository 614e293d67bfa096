#!/bin/sh
# mutate.sh -- plants the faults of mutants.py, one after another, and
# expects that a test turns red.
#
#   sh tests/tools/mutate.sh [--only REGEX] [--quick] [--list] [--check]
#
# It works on a copy of this tree, build/mutate/tree, and builds beside it: only the programs of the
# tests that a fault names.  A line for each fault; the exit status is not 0 where one stays green
# or does not build.  --check looks, without building, whether each text is where the list says,
# once (ctest lint.mutants); --quick takes the few that CI runs, --list names them all and marks
# those that only an area's full run sees.
exec python3 -B "$(dirname "$0")/mutate.py" "$@"
