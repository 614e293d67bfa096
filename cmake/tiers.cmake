# tiers.cmake -- which tests the gate leaves to the full run: those of tests/tiers.txt.
#
# tiers_apply() at the end of a folder that adds tests gives them the labels `full` and their area's
# name.  Their programs are built by the target full_tests, or with everything where LORAD_ALL_ISAS
# is ON (preset full).  CMake's regular expressions select the tests; tests/tools/tiers.py reads the
# same file for the sources.
file(STRINGS ${PROJECT_SOURCE_DIR}/tests/tiers.txt tier_lines)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/tiers.txt)

add_custom_target(full_tests)

function(tiers_apply)
    get_property(tests DIRECTORY PROPERTY TESTS)
    get_property(smoke_programs GLOBAL PROPERTY smoke_programs)
    foreach(line IN LISTS tier_lines)
        if(line MATCHES "^area (.+)$")
            set(area ${CMAKE_MATCH_1})
        elseif(line MATCHES "^(tests|also) (.+)$")
            set(kind ${CMAKE_MATCH_1})
            set(names ${tests})
            list(FILTER names INCLUDE REGEX "${CMAKE_MATCH_2}")
            foreach(name IN LISTS names)
                set_property(TEST ${name} APPEND PROPERTY LABELS ${area})
                if(kind STREQUAL "also")
                    continue()
                endif()
                set_property(TEST ${name} APPEND PROPERTY LABELS full)
                if(TARGET ${name} AND NOT LORAD_ALL_ISAS AND NOT name IN_LIST smoke_programs)
                    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
                    add_dependencies(full_tests ${name})
                endif()
            endforeach()
        endif()
    endforeach()
endfunction()

# A program that runs in the gate by the first case of each of its loops (tests/run_suite.h).
function(smoke_test name target)
    add_test(NAME smoke.${name} COMMAND ${target} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}/tests)
    set_tests_properties(smoke.${name} PROPERTIES LABELS unit TIMEOUT ${slow_timeout} ENVIRONMENT LORAD_SMOKE=1)
    set_property(GLOBAL APPEND PROPERTY smoke_programs ${target})
endfunction()
