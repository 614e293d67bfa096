#!/bin/sh
# check_layers.sh ROOT -- fails when a folder includes one that it must not know.
# The table is the architecture: "this room may include: ...".
set -eu
cd "$1"
may_include() {
    case $1 in
    engine/base) echo "engine/base" ;;
    engine) echo "engine engine/base" ;;
    storage) echo "storage engine/base" ;;
    adapters) echo "adapters storage engine engine/base" ;;
    tui) echo "tui gateway/admin_proto.h engine/base" ;;
    gateway) echo "gateway adapters storage engine engine/base" ;;
    tests) echo "tests gateway adapters storage engine engine/base tui" ;;
    esac
}
room_of() {
    case $1 in
    engine/base/*) echo engine/base ;;
    *) echo "${1%%/*}" ;;
    esac
}
list=$(find engine storage adapters gateway tests $(ls -d tui 2>/dev/null) \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \))
bad=0
for f in $list; do
    room=$(room_of "$f")
    for inc in $(sed -n 's/^# *include "\([^"]*\)".*/\1/p' "$f"); do
        to=$(room_of "$inc")
        case " $(may_include "$room") " in
        *" $to "* | *" $inc "*) ;;
        *)
            echo "$f: '$room' may not include \"$inc\"" >&2
            bad=1
            ;;
        esac
    done
done
exit $bad
