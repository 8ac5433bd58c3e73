# What `cmake --install` and `cpack` give. Components are Debian packages: the runtime's library (libtfcc0), the compiler's
# (libtfcc-compiler0), the commands (tfcc), what programs are built with (libtfcc-dev), the Python package (python3-tfcc).
# Tested by tests/package.
include(CMakePackageConfigHelpers)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)

install(TARGETS tfcc EXPORT tfcc LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development)
install(FILES runtime/tfcc.h runtime/nvtx.h runtime/tfcc_c.h runtime/result.h runtime/dtype.h runtime/input_role.h runtime/size_role.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tfcc/runtime)
if(TARGET tfcc_cpu)
  install(TARGETS tfcc_cpu LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/tfcc COMPONENT runtime)  # opened by libtfcc.so alone, which looks there
endif()
if(TFCC_COMPILER)
  install(TARGETS tfcc_generate tfcc_text EXPORT tfcc ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(TARGETS tfcc_compiler EXPORT tfcc LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT compiler NAMELINK_COMPONENT development)
  install(FILES runtime/generate.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tfcc/runtime)
  install(FILES runtime/text/tokenizer.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tfcc/runtime/text)
  install(FILES tools/compiler/tfcc_compiler.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tfcc/compiler)
  install(TARGETS tfcc_cli tfcc_embed RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT commands)
  # LLVM and oneDNN may lie where the loader does not look. Debian's have a link where it does.
  if(NOT EXISTS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/libclang-cpp.so.19.1)
    foreach(target tfcc_cli tfcc_compiler tfcc_cpu)
      if(TARGET ${target})
        set_target_properties(${target} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
      endif()
    endforeach()
  endif()
endif()

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

# What the command says of its options: completion for the shell, manual pages.
if(TARGET tfcc_cli)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/completion/tfcc DEPENDS tfcc_cli VERBATIM
    COMMAND ${CMAKE_COMMAND} -E make_directory completion
    COMMAND ./tfcc completion > completion/tfcc WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  add_custom_target(completion ALL DEPENDS ${CMAKE_BINARY_DIR}/completion/tfcc)
  install(FILES ${CMAKE_BINARY_DIR}/completion/tfcc DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT commands)
endif()
find_program(HELP2MAN help2man)
if(HELP2MAN AND TARGET tfcc_cli)
  set(pages "")
  function(tfcc_page name command summary)
    add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/man/${name}.1.gz DEPENDS tfcc_cli tfcc_embed VERBATIM
      COMMAND ${CMAKE_COMMAND} -E make_directory man
      COMMAND ${HELP2MAN} --no-info --version-string=${PROJECT_VERSION} --name=${summary} --output=man/${name}.1 ${command}
      COMMAND gzip -9nf man/${name}.1 WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    set(pages ${pages} ${CMAKE_BINARY_DIR}/man/${name}.1.gz PARENT_SCOPE)
  endfunction()
  tfcc_page(tfcc "./tfcc" "ahead-of-time compiler for transformers")
  tfcc_page(tfcc-embed "./tfcc-embed" "sentences to vectors with a compiled model")
  tfcc_page(tfcc-compile "./tfcc compile" "compile an ONNX model to a .tfcc file")
  tfcc_page(tfcc-run "./tfcc run" "run a .tfcc file")
  tfcc_page(tfcc-generate "./tfcc generate" "let a compiled decoder write")
  tfcc_page(tfcc-verify "./tfcc verify" "compare a compiled model with its graph in float64")
  tfcc_page(tfcc-bench "./tfcc bench" "time a .tfcc file")
  tfcc_page(tfcc-inspect "./tfcc inspect" "show what is in a .tfcc file")
  tfcc_page(tfcc-opt "./tfcc opt" "run passes over a graph in text form")
  tfcc_page(tfcc-tune "./tfcc tune" "measure the fastest products of a .tfcc file")
  add_custom_target(manual ALL DEPENDS ${pages})
  install(FILES ${pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT commands)
endif()

# Documents and examples, with what builds programs; the page of the command with the command.
file(GLOB documents docs/*.md docs/*.png)
install(FILES README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tfcc COMPONENT commands)
install(FILES ${documents} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tfcc/docs COMPONENT commands)
install(DIRECTORY tools/examples/ DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libtfcc-dev/examples
  FILES_MATCHING PATTERN "*.cpp" PATTERN "*.c" PATTERN "CMakeLists.txt")

# The Python package goes into Debian's packages alone; elsewhere it is installed by pip (tools/python).
install(DIRECTORY tools/python/tfcc DESTINATION lib/python3/dist-packages COMPONENT python EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.py" PATTERN "py.typed")
include(tools/cmake/debian.cmake)
