# cuda.cmake -- engine/cuda/*.cu for devices, where nvcc is found: the
# object library `cuda_kernels`.
#
# LORAD_CUDA=ON insists, =OFF leaves it out. LORAD_CUDA_ARCH: which devices ("90" or "80;90" ...).
# nvcc is called by rules of our own: CMake's CUDA language would try to link a program first, which
# needs parts of the toolkit that the kernels do not.
if(NOT DEFINED LORAD_NVCC)
    find_program(LORAD_NVCC nvcc PATHS /usr/local/cuda/bin)
endif()
if(LORAD_NVCC)
    set(have_nvcc ON)
else()
    set(have_nvcc OFF)
endif()
option(LORAD_CUDA "Compile the CUDA kernels (default: where nvcc is found)" ${have_nvcc})
if(LORAD_CUDA AND NOT have_nvcc)
    message(FATAL_ERROR "LORAD_CUDA is ON, but there is no nvcc; name it with -DLORAD_NVCC=")
endif()
if(LORAD_CUDA)
    if(NOT DEFINED LORAD_CUDA_ARCH)
        set(arch 80 89 90)
        execute_process(COMMAND ${LORAD_NVCC} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
        if(known MATCHES "compute_100")
            list(APPEND arch 100)
        endif()
        set(LORAD_CUDA_ARCH "${arch}" CACHE STRING "compute capabilities to compile kernels for")
    endif()
    # PTX twice: of the least, and of the least from 90 on, where launches may begin early.
    # Compiling again for each device would give the same, and take longer.  Machine code is made of
    # it for each; the newer one goes along for devices to come, where launches begin early as well.
    set(arch ${LORAD_CUDA_ARCH})
    list(SORT arch COMPARE NATURAL)
    set(old ${arch})
    set(new ${arch})
    list(FILTER old EXCLUDE REGEX "^(9[0-9]|[1-9][0-9][0-9])")
    list(FILTER new INCLUDE REGEX "^(9[0-9]|[1-9][0-9][0-9])")
    set(gencode)
    foreach(part old new)
        if(${part})
            list(GET ${part} 0 least)
            list(TRANSFORM ${part} PREPEND sm_ OUTPUT_VARIABLE code)
            if(part STREQUAL "new" OR NOT new)
                list(PREPEND code compute_${least})
            endif()
            list(JOIN code "," code)
            list(APPEND gencode -gencode "arch=compute_${least},code=[${code}]")
        endif()
    endforeach()
    set(common -O3 -std=c++17 -lineinfo --threads 0 -I${PROJECT_SOURCE_DIR} -Xcompiler=-Wall,-Wextra,-fPIC
        -Werror=all-warnings)
    set(LORAD_NVCC_FLAGS ${common} ${gencode})
    # gemm_wide.cu and gemm_cluster.cu are for sm_90 alone: instructions of theirs are in no other
    # device.
    set(wide_flags ${LORAD_NVCC_FLAGS})
    if("90" IN_LIST LORAD_CUDA_ARCH)
        set(wide_flags ${common} -DLORAD_SM90A -gencode "arch=compute_90a,code=sm_90a")
    endif()
    file(GLOB cuda_src CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/engine/cuda/*.cu ${PROJECT_SOURCE_DIR}/engine/cuda/products/*.cu
     ${PROJECT_SOURCE_DIR}/engine/cuda/rows/*.cu)
    set(cuda_obj)
    foreach(f IN LISTS cuda_src)
        get_filename_component(name ${f} NAME_WE)
        set(obj ${PROJECT_BINARY_DIR}/cuda/${name}.o)
        set(flags ${LORAD_NVCC_FLAGS})
        if(name MATCHES "^gemm_(wide|cluster)$")
            set(flags ${wide_flags})
        elseif(name MATCHES "^(gemm_stream|sgmv)$" AND flags MATCHES ",sm_100\\]")
            # Their launch bounds tell sm_100 from sm_90: it needs PTX of its own (CU_UP_TO_SM90).
            string(REPLACE ",sm_100]" "]" flags "${flags}")
            list(APPEND flags -gencode arch=compute_100,code=sm_100)
        endif()
        add_custom_command(OUTPUT ${obj}
            COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/cuda
            COMMAND ${LORAD_NVCC} ${flags} -MD -MF ${obj}.d -c ${f} -o ${obj}
            DEPENDS ${f} DEPFILE ${obj}.d COMMENT "nvcc engine/cuda/${name}.cu" VERBATIM)
        list(APPEND cuda_obj ${obj})
    endforeach()
    add_custom_target(cuda_objects ALL DEPENDS ${cuda_obj})
    add_library(cuda_kernels OBJECT IMPORTED GLOBAL)
    set_target_properties(cuda_kernels PROPERTIES IMPORTED_OBJECTS "${cuda_obj}")
    add_dependencies(cuda_kernels cuda_objects)
    set(LORAD_CUDA_OBJECTS ${cuda_obj})
    message(STATUS "CUDA kernels: sm_${LORAD_CUDA_ARCH} by ${LORAD_NVCC}")
else()
    message(STATUS "no nvcc: CUDA kernels are compiled for the emulator only")
endif()
