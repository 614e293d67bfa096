# civetweb: built from its source in Debian (see cmake/build_civetweb.sh for why and how), and again
# whenever what it is made of has changed.
set(LORAD_CIVETWEB_DIR "${PROJECT_SOURCE_DIR}/build/deps/civetweb" CACHE PATH
    "where include/civetweb.h and lib/libcivetweb.a are, or will be built")
set(civetweb_script ${PROJECT_SOURCE_DIR}/cmake/build_civetweb.sh)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${civetweb_script}
    ${PROJECT_SOURCE_DIR}/cmake/civetweb.patch ${PROJECT_SOURCE_DIR}/cmake/civetweb-requests.inl)
execute_process(COMMAND sh ${civetweb_script} --stamp OUTPUT_VARIABLE wanted COMMAND_ERROR_IS_FATAL ANY)
set(found "")
if(EXISTS ${LORAD_CIVETWEB_DIR}/lib/stamp)
    file(READ ${LORAD_CIVETWEB_DIR}/lib/stamp found)
endif()
if(NOT found STREQUAL wanted)
    message(STATUS "building civetweb into ${LORAD_CIVETWEB_DIR}")
    execute_process(COMMAND ${CMAKE_COMMAND} -E env CC=${CMAKE_C_COMPILER} AR=${CMAKE_AR}
            SYSROOT=${CMAKE_SYSROOT} sh ${civetweb_script} ${LORAD_CIVETWEB_DIR}
        RESULT_VARIABLE rc)
    if(NOT rc EQUAL 0)
        message(FATAL_ERROR "civetweb could not be built: see the lines above")
    endif()
endif()
add_library(civetweb STATIC IMPORTED)
set_target_properties(civetweb PROPERTIES
    IMPORTED_LOCATION ${LORAD_CIVETWEB_DIR}/lib/libcivetweb.a
    INTERFACE_INCLUDE_DIRECTORIES ${LORAD_CIVETWEB_DIR}/include
    INTERFACE_LINK_LIBRARIES "OpenSSL::SSL;OpenSSL::Crypto;Threads::Threads;dl")
