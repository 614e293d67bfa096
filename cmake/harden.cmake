# harden.cmake -- what makes a fault harder to use against the server, in the builds that users run.
#
# Sanitizers have checks of their own, and _FORTIFY_SOURCE wants an optimising compiler: debug
# builds go without.  e2e.test_hardening reads all of it out of the programs.
if(LORAD_SANITIZE OR CMAKE_BUILD_TYPE STREQUAL "Debug")
    return()
endif()
include(CheckCCompilerFlag)
add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-clash-protection -fPIE)
check_c_compiler_flag(-fcf-protection=full LORAD_HAS_CET) # x86 alone
if(LORAD_HAS_CET)
    add_compile_options(-fcf-protection=full)
endif()
check_c_compiler_flag(-mbranch-protection=standard LORAD_HAS_PAC) # aarch64 alone
if(LORAD_HAS_PAC)
    add_compile_options(-mbranch-protection=standard)
endif()
# Relocations are done before main() and stay read-only; neither stack nor data can be run.
add_link_options(-pie -Wl,-z,relro,-z,now,-z,noexecstack,-z,separate-code)
