# emu.cmake -- CUDA sources for the host compiler and the emulator in tests/emu.
#
# add_emu_test(name sources...): the ctest emu.<name>, label unit, from .cu (as C++), .cpp and .c
# files, each compiled with every access to memory reported to the emulator (emu.h). .cu files of
# engine/cuda are compiled once, in emu_kernels, which is linked.
#
# -fsanitize=thread makes the compiler call hooks, which tests/emu/emu_memory.cpp has: these
# programs are never linked with a sanitizer's library, in no preset.
set(emu_flags -Wall -Wextra -Wshadow -Wno-unknown-pragmas $<$<COMPILE_LANGUAGE:CXX>:-Wno-deprecated-enum-enum-conversion>
    -O1 -g1 -ffp-contract=off -DLORAD_EMU -I${PROJECT_SOURCE_DIR}/tests/emu/include)
set(emu_watch -fsanitize=thread "SHELL:--param tsan-instrument-func-entry-exit=0")
add_library(emu STATIC tests/emu/emu.cpp tests/emu/emu_memory.cpp tests/emu/emu_wgmma.cpp tests/emu/emu_cluster.cpp)
set_target_properties(emu PROPERTIES COMPILE_OPTIONS "${emu_flags};-O3" CXX_STANDARD 20)

function(emu_target name)
    foreach(f IN LISTS ARGN)
        if(f MATCHES "\\.cu$")
            set_source_files_properties(${f} PROPERTIES LANGUAGE CXX)
        endif()
    endforeach()
    set_target_properties(${name} PROPERTIES COMPILE_OPTIONS "${emu_flags};${emu_watch}" LINK_OPTIONS ""
        CXX_STANDARD 20)
endfunction()

file(GLOB emu_src CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/cuda/*.cu ${PROJECT_SOURCE_DIR}/engine/cuda/products/*.cu
     ${PROJECT_SOURCE_DIR}/engine/cuda/rows/*.cu)
if(emu_src)
    add_library(emu_kernels STATIC ${emu_src})
    emu_target(emu_kernels ${emu_src})
else()
    add_library(emu_kernels INTERFACE)
endif()

# The random weights of tests/gpu/bench_device.c.
add_library(emu_noise STATIC tests/gpu/noise.cu)
emu_target(emu_noise tests/gpu/noise.cu)

# Plain C that the tests need: the sampler that kernels are compared with, the host's
# parts of attention and LoRA.
add_library(emu_host STATIC engine/sample/sampler.c engine/sample/cut.c engine/sample/logits.c engine/cuda/attend_plan.c engine/cuda/sgmv_plan.c engine/cuda/products/codes.c)
set_target_properties(emu_host PROPERTIES COMPILE_OPTIONS "-Wall;-Wextra;-Wshadow;-O2;-g;-ffp-contract=off" LINK_OPTIONS "")

function(add_emu_test name)
    add_executable(emu.${name} ${ARGN})
    emu_target(emu.${name} ${ARGN})
    target_link_libraries(emu.${name} PRIVATE emu_kernels emu_host emu PkgConfig::CHECK Threads::Threads m)
    add_test(NAME emu.${name} COMMAND emu.${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}/tests)
    set_tests_properties(emu.${name} PROPERTIES LABELS unit TIMEOUT ${slow_timeout})
    smoke_test(${name} emu.${name})
endfunction()

add_emu_test(test_emu tests/emu/test_emu.cu)
add_emu_test(test_rows tests/emu/test_rows.cu)
add_emu_test(test_norms tests/emu/test_norms.cu)
add_emu_test(test_attend tests/emu/test_attend.cu)
add_emu_test(test_sample tests/emu/test_sample.cu)
add_emu_test(test_sgmv tests/emu/test_sgmv.cu)
add_emu_test(test_gemm tests/emu/test_gemm.cu)
add_emu_test(test_gemm_lora tests/emu/test_gemm_lora.cu)
add_emu_test(test_experts tests/emu/test_experts.cu)
add_emu_test(test_codes tests/emu/test_codes.cu)
set_tests_properties(emu.test_gemm emu.test_attend emu.test_codes PROPERTIES COST 60) # begin first

# The model of an H200 gives what one measured.
add_test(NAME gpu.calibrated COMMAND python3 ${PROJECT_SOURCE_DIR}/tests/gpu/calibrated.py --check)
set_tests_properties(gpu.calibrated PROPERTIES LABELS unit)

# What nvcc made of the kernels: tensor cores, registers, no local memory; within the budget.
if(LORAD_CUDA AND NOT LORAD_SANITIZE) # emu.bench_device names the launches
    add_test(NAME gpu.sass COMMAND python3 ${PROJECT_SOURCE_DIR}/tests/gpu/sass.py ${LORAD_CUDA_OBJECTS})
    add_test(NAME gpu.predict COMMAND python3 ${PROJECT_SOURCE_DIR}/tests/gpu/predict.py
        --trace $<TARGET_FILE:emu.bench_device> ${LORAD_CUDA_OBJECTS})
    set_tests_properties(gpu.sass gpu.predict PROPERTIES LABELS "unit;predict")
    # Where LORAD_CUDA_ARCH lacks one of the devices that it speaks of.
    set_tests_properties(gpu.predict PROPERTIES SKIP_RETURN_CODE 77 COST 60)
endif()
