# version.cmake -- cmake -D SOURCE= -D COMMIT= -D HOW= -D OUT= -P: writes OUT
# (engine/program/version.h's texts), if it changes.
set(commit "${COMMIT}")
if(commit STREQUAL "")
    execute_process(COMMAND git -C ${SOURCE} describe --always --abbrev=12 --exclude=* --dirty=-modified
        OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(commit STREQUAL "")
    set(commit "$Format:%h$") # a source archive's (.gitattributes)
endif()
if(commit MATCHES Format)
    set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT [[
#include "engine/program/version.h"

const char version_commit[] = "@commit@";
const char version_build[] = "@HOW@";
]] @ONLY)
