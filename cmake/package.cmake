# package.cmake -- man pages and completions from the programs themselves,
# install rules, `cpack -G DEB`.
include(GNUInstallDirs)

# made(FILE PROGRAM ARGUMENTS...): a file that a program of ours prints, made with everything else
set(made_dir ${PROJECT_BINARY_DIR}/made)
file(MAKE_DIRECTORY ${made_dir})
set(made_files)
macro(made file program)
    add_custom_command(OUTPUT ${made_dir}/${file}
        COMMAND ${program} ${ARGN} > ${made_dir}/${file}.tmp
        COMMAND ${CMAKE_COMMAND} -E rename ${made_dir}/${file}.tmp ${made_dir}/${file}
        DEPENDS ${program} VERBATIM)
    list(APPEND made_files ${made_dir}/${file})
endmacro()
made(lorad.1 lorad --print-man 1)
made(lorad.conf.5 lorad --print-man 5)
made(loractl.1 loractl --print-man)
made(loractl.bash loractl completion bash)
made(_loractl loractl completion zsh)
made(loractl.fish loractl completion fish)
made(lorad.conf lorad --print-conf)
set(programs lorad loractl)
if(TARGET loratop)
    list(APPEND programs loratop)
    made(loratop.1 loratop --print-man)
endif()
list(TRANSFORM programs APPEND .1 OUTPUT_VARIABLE pages)
foreach(page ${pages} lorad.conf.5)
    add_custom_command(OUTPUT ${made_dir}/${page}.gz COMMAND gzip -9nkf ${made_dir}/${page}
        DEPENDS ${made_dir}/${page} VERBATIM)
    list(APPEND made_files ${made_dir}/${page}.gz)
endforeach()
set(LORAD_MAINTAINER "lorad's maintainers <lorad@localhost>" CACHE STRING "who answers for the package, with a mail address")
file(READ ${PROJECT_SOURCE_DIR}/conf/debian/changelog changelog)
string(REGEX REPLACE "\n -- [^\n]+>  " "\n -- ${LORAD_MAINTAINER}  " changelog "${changelog}")
file(CONFIGURE OUTPUT ${made_dir}/changelog CONTENT "${changelog}" @ONLY)
add_custom_command(OUTPUT ${made_dir}/changelog.gz
    COMMAND gzip -9nc ${made_dir}/changelog > ${made_dir}/changelog.gz
    DEPENDS ${made_dir}/changelog VERBATIM)
list(APPEND made_files ${made_dir}/changelog.gz)
add_custom_target(made ALL DEPENDS ${made_files})

# The unit names /usr/local, where `install` by hand puts the program; a package owns /usr.
file(READ ${PROJECT_SOURCE_DIR}/conf/lorad.service unit)
string(REPLACE /usr/local/bin/ /usr/bin/ unit "${unit}")
file(CONFIGURE OUTPUT ${made_dir}/lorad.service CONTENT "${unit}" @ONLY)

install(TARGETS ${programs} RUNTIME DESTINATION bin)
list(TRANSFORM pages REPLACE "(.+)" "${made_dir}/\\1.gz")
install(FILES ${pages} DESTINATION share/man/man1)
install(FILES ${made_dir}/lorad.conf.5.gz DESTINATION share/man/man5)
install(FILES ${made_dir}/loractl.bash DESTINATION share/bash-completion/completions RENAME loractl)
foreach(name lorad loratop)
    if(TARGET ${name})
        install(FILES ${PROJECT_SOURCE_DIR}/conf/completion/lorad.bash
            DESTINATION share/bash-completion/completions RENAME ${name})
    endif()
endforeach()
install(FILES ${made_dir}/_loractl DESTINATION share/zsh/vendor-completions)
install(FILES ${made_dir}/loractl.fish DESTINATION share/fish/vendor_completions.d)
install(FILES ${made_dir}/lorad.service DESTINATION lib/systemd/system)
install(FILES ${PROJECT_SOURCE_DIR}/conf/debian/lorad.sysusers DESTINATION lib/sysusers.d
    RENAME lorad.conf)
# The package with the CUDA backend has another name; Debian looks for these two under it.
set(package lorad)
if(LORAD_CUDA AND NOT LORAD_SANITIZE)
    set(package lorad-cuda)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/conf/debian/copyright ${made_dir}/changelog.gz DESTINATION share/doc/${package})
# Folders as in the source tree, so that the documents' links lead somewhere.
foreach(file README.md CHANGELOG.md NOTICE SECURITY.md conf/Containerfile conf/lorad.conf conf/lorad.service conf/lorad-cuda.conf
        conf/openapi.json tests/bench/RESULTS.md)
    get_filename_component(folder ${file} DIRECTORY)
    install(FILES ${PROJECT_SOURCE_DIR}/${file} DESTINATION share/doc/lorad/${folder})
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION share/doc/lorad)
foreach(folder grafana helm kubernetes prometheus)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/conf/${folder} DESTINATION share/doc/lorad/conf)
endforeach()
install(FILES ${made_dir}/lorad.conf DESTINATION /etc/lorad
    PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME lorad)
set(CPACK_PACKAGE_VENDOR lorad)
set(CPACK_PACKAGE_CONTACT ${LORAD_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "multi-tenant LoRA serving gateway")
set(CPACK_PACKAGE_DESCRIPTION "Serves many LoRA adapters over one shared base model to many tenants,
from one process, over HTTPS, with OpenAI's API; with its command line.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
# Strips the programs into lorad-dbgsym_*.ddeb; CPACK_STRIP_FILES would strip before that.
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
if(NOT LORAD_ALL_ISAS)
    string(APPEND CPACK_PACKAGE_DESCRIPTION_SUMMARY " (for processors like the build machine's)")
endif()
# Two packages that cannot be there together: who has no GPU needs no kernels for one.
if(package STREQUAL lorad-cuda)
    set(CPACK_DEBIAN_PACKAGE_NAME lorad-cuda)
    set(CPACK_DEBIAN_PACKAGE_PROVIDES lorad)
    set(CPACK_DEBIAN_PACKAGE_CONFLICTS lorad)
    set(CPACK_DEBIAN_PACKAGE_REPLACES lorad)
    string(APPEND CPACK_PACKAGE_DESCRIPTION_SUMMARY ", with its CUDA backend")
    install(FILES ${PROJECT_SOURCE_DIR}/conf/lorad-cuda.conf DESTINATION lib/systemd/system/lorad.service.d
        RENAME cuda.conf)
endif()
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Cross-compiled: what the package depends on is asked of the sysroot's packages.
if(CMAKE_CROSSCOMPILING)
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
    set(CPACK_OBJCOPY_EXECUTABLE ${CMAKE_OBJCOPY})
    file(CONFIGURE OUTPUT ${made_dir}/dpkg-shlibdeps CONTENT
"#!/bin/sh
exec dpkg-shlibdeps --admindir=${CMAKE_SYSROOT}/var/lib/dpkg -l${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu \"$@\"
")
    file(CHMOD ${made_dir}/dpkg-shlibdeps PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    set(CPACK_PROJECT_CONFIG_FILE ${made_dir}/cross.cmake)
    file(CONFIGURE OUTPUT ${CPACK_PROJECT_CONFIG_FILE} CONTENT "set(SHLIBDEPS_EXECUTABLE ${made_dir}/dpkg-shlibdeps)\n")
endif()
set(CPACK_DEBIAN_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers | opensysusers")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/conf/debian/conffiles
    ${PROJECT_SOURCE_DIR}/conf/debian/postinst ${PROJECT_SOURCE_DIR}/conf/debian/prerm
    ${PROJECT_SOURCE_DIR}/conf/debian/postrm)
# `cpack` packs what was built; it builds nothing.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
include(CPack)
