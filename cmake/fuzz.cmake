# The harnesses of tests/fuzz, one program for each parser of bytes from outside.  In every preset
# they come with replay.c: seeds, what was found, and a bounded number of variations (ctest
# fuzz.<noun>).  With LORAD_FUZZ (tests/fuzz/run.sh; clang or afl-clang-fast) they come with that
# compiler's driver instead.
set(fuzz_seeds ${CMAKE_BINARY_DIR}/fuzz/seeds)
set(fuzz_libs adapters gatewaylib client client_top)
file(GLOB fuzz_src CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_*.c
    ${PROJECT_SOURCE_DIR}/tests/fuzz/*/fuzz_*.c)
add_library(fuzzlib STATIC ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz.c)
target_link_libraries(fuzzlib PUBLIC engine)
add_custom_target(fuzzers)
add_dependencies(fuzzers test_weights)
add_executable(fuzz_differ ${PROJECT_SOURCE_DIR}/tests/fuzz/differ.c)
target_link_libraries(fuzz_differ PRIVATE fuzzlib adapters)
add_dependencies(fuzzers fuzz_differ)
add_dependencies(watched fuzz_differ)
# Variations in the suite: as many as fit, so that a slow machine does not wait.
set(fuzz_runs 1000000)
set(fuzz_ms 700)
if(LORAD_SANITIZE)
    set(fuzz_ms 2000)
endif()

add_test(NAME fuzz.seeds
    COMMAND python3 ${PROJECT_SOURCE_DIR}/tests/fuzz/make_seeds.py ${PROJECT_SOURCE_DIR} ${fuzz_seeds})
set_tests_properties(fuzz.seeds PROPERTIES LABELS fuzz FIXTURES_SETUP fuzz_seeds)
# jinja2, where there is one, comes with the environment of LangChain and LiteLLM.
set(fuzz_python python3)
if(EXISTS ${PROJECT_SOURCE_DIR}/build/venv-clients/bin/python)
    set(fuzz_python ${PROJECT_SOURCE_DIR}/build/venv-clients/bin/python)
endif()
add_test(NAME fuzz.differ
    COMMAND ${fuzz_python} ${PROJECT_SOURCE_DIR}/tests/fuzz/differ.py --ours $<TARGET_FILE:fuzz_differ> --seconds 2)
set_tests_properties(fuzz.differ PROPERTIES LABELS fuzz TIMEOUT ${slow_timeout})

foreach(src IN LISTS fuzz_src)
    get_filename_component(name ${src} NAME_WE)
    string(REPLACE "fuzz_" "" noun ${name})
    set(target fuzz.${noun})
    add_executable(${target} ${src})
    add_dependencies(fuzzers ${target})
    target_link_libraries(${target} PRIVATE fuzzlib ${fuzz_libs})
    if(LORAD_FUZZ)
        target_link_options(${target} PRIVATE -fsanitize=fuzzer)
        continue()
    endif()
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/replay.c)
    add_dependencies(watched ${target})
    add_test(NAME ${target}
        COMMAND ${target} --runs ${fuzz_runs} --ms ${fuzz_ms} ${fuzz_seeds}/${noun} ${PROJECT_SOURCE_DIR}/tests/fuzz/found/${noun}
        WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    set_tests_properties(${target} PROPERTIES LABELS fuzz TIMEOUT ${slow_timeout} FIXTURES_REQUIRED fuzz_seeds)
endforeach()
