# civetweb: built once from Debian's source package (see cmake/build_civetweb.sh for why).
set(LORAD_CIVETWEB_DIR "${PROJECT_SOURCE_DIR}/build/deps/civetweb" CACHE PATH
    "where include/civetweb.h and lib/libcivetweb.a are, or will be built")
if(NOT EXISTS ${LORAD_CIVETWEB_DIR}/lib/libcivetweb.a)
    message(STATUS "building civetweb into ${LORAD_CIVETWEB_DIR}")
    execute_process(COMMAND ${CMAKE_COMMAND} -E env CC=${CMAKE_C_COMPILER}
            sh ${PROJECT_SOURCE_DIR}/cmake/build_civetweb.sh ${LORAD_CIVETWEB_DIR}
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
