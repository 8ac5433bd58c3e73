# tfcc_precompile(TARGET [HEADER...]): the standard library's headers that most of our files include, and HEADERs of other
# libraries, are compiled once for the sources of TARGET. Half of the time of a small file goes to them. It pays from about five
# files on. A file still includes what it uses: -DTFCC_PRECOMPILED=OFF builds without.
option(TFCC_PRECOMPILED "Precompile headers of libraries" ON)

# ccache cannot see past a precompiled header without these.
if(TFCC_PRECOMPILED AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
elseif(TFCC_PRECOMPILED)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")
endif()

function(tfcc_precompile target)
  if(NOT TFCC_PRECOMPILED)
    return()
  endif()
  set(headers algorithm array cmath cstdint cstring functional map memory optional set span string string_view utility vector)
  list(TRANSFORM headers REPLACE "(.+)" "<\\1>")
  target_precompile_headers(${target} PRIVATE ${headers} ${ARGN})
endfunction()
