#!/bin/sh
# run.sh -- lorad for aarch64 on another machine: cross-built, and run by qemu-aarch64.
#
#   run.sh build              cross-builds (preset aarch64) the server and the tests below
#   run.sh test REGEX         those of the cross-built tests
#   run.sh kernels SET CASE   cpu.test_kernels of one instruction set
#   run.sh goldens MODEL      engine.test_conformance of one model
#   run.sh sets               the instruction set that three processors select
#   run.sh hot_loops          tests/engine/cpu/hot_loops.py
#   run.sh served NATIVE      served.py: the quickstart's answers, as NATIVE's lorad gives them;
#                             NATIVE: a build folder for this machine
#
# The ctests aarch64.* call it.  A missing tool is a failure: tests/run.sh installs them.
set -eu
cd "$(dirname "$0")/../.."
build=build/aarch64
export QEMU_CPU="max,pauth-impdef=on" # pointer authentication by a hash that is quick to emulate
targets="lorad cpu.test_isa cpu.test_kernels cpu.test_mixers engine.test_conformance engine.test_quant
    base.test_hash base.test_json"
case ${1:?usage: run.sh build, test, kernels, goldens, sets, hot_loops or served} in
build)
    cmake --preset aarch64 >build/aarch64.log || { cat build/aarch64.log; exit 1; }
    # shellcheck disable=SC2086  # names
    exec cmake --build --preset aarch64 --target $targets ;;
test)
    exec ctest --test-dir $build --no-tests=error --output-on-failure -R "${2:?usage: run.sh test REGEX}" ;;
kernels)
    cd tests
    LORAD_ONLY_ISA=${2:?usage: run.sh kernels SET CASE} CK_RUN_CASE=${3:?usage: run.sh kernels SET CASE} \
        exec ../$build/emulated/cpu.test_kernels ;;
goldens)
    cd tests
    LORAD_ONLY_MODEL=${2:?usage: run.sh goldens MODEL} exec ../$build/emulated/engine.test_conformance ;;
sets)
    # Without dot products, with them, with I8MM and BF16.
    for pair in cortex-a72:portable neoverse-n1:neon max:i8mm; do
        cpu=${pair%:*} wanted=${pair#*:}
        found=$(cd tests && QEMU_CPU=$cpu ../$build/emulated/cpu.test_isa | sed -n 's/^auto: //p')
        [ "$found" = "$wanted" ] || { echo "$cpu selects '$found', not $wanted"; exit 1; }
        echo "$cpu selects $found"
    done ;;
hot_loops)
    exec python3 tests/engine/cpu/hot_loops.py --objdump aarch64-linux-gnu-objdump $build/libengine_cpu.a portable neon i8mm ;;
served)
    exec python3 tests/aarch64/served.py $build/emulated "${2:?usage: run.sh served NATIVE}" ;;
*)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
    exit 2 ;;
esac
