# What `cmake --install` and `cpack` give: the two programs, the library with its CPU plug-in, the public headers, and
# what find_package(tfcc) and pkg-config read. Tested by tests/package.
include(CMakePackageConfigHelpers)

install(TARGETS tfcc tfcc_generate tfcc_text EXPORT tfcc LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES runtime/generate.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tfcc/runtime)
install(FILES runtime/text/tokenizer.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tfcc/runtime/text)
install(FILES runtime/tfcc.h runtime/tfcc_c.h runtime/result.h runtime/dtype.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tfcc/runtime)
install(TARGETS tfcc_embed)
if(TARGET tfcc_cpu)
  install(TARGETS tfcc_cpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})  # the runtime looks beside itself
endif()
if(TARGET tfcc_cli)
  install(TARGETS tfcc_cli)
endif()
foreach(target tfcc_cli tfcc_cpu)
  if(TARGET ${target})  # LLVM and oneDNN may lie where the loader does not look
    set_target_properties(${target} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  endif()
endforeach()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tfcc)
install(EXPORT tfcc FILE tfcc-targets.cmake NAMESPACE tfcc:: DESTINATION ${package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tfcc-config.cmake.in ${CMAKE_BINARY_DIR}/tfcc-config.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/tfcc-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/tfcc-config.cmake ${CMAKE_BINARY_DIR}/tfcc-config-version.cmake
  DESTINATION ${package_folder})

# Relative to the file itself, so that an installed tree may be moved.
file(RELATIVE_PATH prefix_of_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" prefix_of_pkgconfig "${prefix_of_pkgconfig}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/tfcc.pc.in ${CMAKE_BINARY_DIR}/tfcc.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/tfcc.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tfcc)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "the tfcc maintainers <maintainers@tfcc.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "ahead-of-time compiler and runtime for transformer encoders")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
include(CPack)
