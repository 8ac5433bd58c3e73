# What the wheels of tools/python hold: libraries and programs in one folder, which find each other there, and beside them all that
# they link but what every Linux has. TFCC_WHEEL is "runtime" (tools/python) or "compiler" (tools/python/compiler).
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
# The compiler's package lies beside the runtime's. A DT_RPATH, unlike a DT_RUNPATH, also serves the libraries that a library needs.
set(CMAKE_INSTALL_RPATH $ORIGIN:$ORIGIN/../tfcc)
add_link_options(-Wl,--disable-new-dtags)

function(tfcc_install_wheel)
  if(TFCC_WHEEL STREQUAL "runtime")
    set(binaries $<TARGET_SONAME_FILE:tfcc> $<TARGET_FILE:tfcc_cpu>)
  else()
    set(binaries $<TARGET_SONAME_FILE:tfcc_compiler> $<TARGET_FILE:tfcc_cli>)
  endif()
  install(CODE "set(binaries \"${binaries}\")\nset(strip \"${CMAKE_STRIP}\")" COMPONENT wheel)
  install(SCRIPT ${CMAKE_SOURCE_DIR}/tools/cmake/install_wheel.cmake COMPONENT wheel)
endfunction()
