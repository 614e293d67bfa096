# aarch64.cmake -- toolchain file of the preset aarch64: cross-compiles on another machine.
#
# Compiles against the arm64 libraries of this machine's Debian release, which aarch64_sysroot.sh
# unpacks into LORAD_SYSROOT.  ctest runs the tests by qemu-aarch64, and the build runs the programs
# by it that print man pages.  Requires gcc-aarch64-linux-gnu, g++-aarch64-linux-gnu, qemu-user.
# On an aarch64 machine, the other presets compile as anywhere.
get_filename_component(root ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
set(LORAD_SYSROOT ${root}/build/deps/aarch64 CACHE PATH "arm64 libraries: made if they are missing")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES LORAD_SYSROOT)
if(NOT EXISTS ${LORAD_SYSROOT}/packages)
    execute_process(COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/aarch64_sysroot.sh ${LORAD_SYSROOT} RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "the arm64 libraries could not be unpacked: see the lines above")
    endif()
endif()

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT ${LORAD_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${LORAD_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${LORAD_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${LORAD_SYSROOT}/usr/share/pkgconfig)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${LORAD_SYSROOT}) # QEMU_CPU names the processor
