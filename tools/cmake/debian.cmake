# The Debian packages that `cpack` makes, one for each component of install.cmake.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tfcc)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "the tfcc maintainers <maintainers@tfcc.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "ahead-of-time compiler and runtime for transformers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/runtime ${CMAKE_BINARY_DIR}/tools)
set(CPACK_COMPONENTS_ALL runtime development)

# tfcc_package(COMPONENT NAME SECTION SUMMARY DESCRIPTION [DEPENDS...]): a package, with its copyright and changelog.
function(tfcc_package component name section summary description)
  string(TOUPPER ${component} upper)
  string(REPLACE ";" ", " depends "${ARGN}")
  foreach(field NAME SECTION DEPENDS)
    string(TOLOWER ${field} value)
    set(CPACK_DEBIAN_${upper}_PACKAGE_${field} "${${value}}" PARENT_SCOPE)
  endforeach()
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${summary}\n${description}" PARENT_SCOPE)
  install(FILES ${CMAKE_BINARY_DIR}/debian/copyright ${CMAKE_BINARY_DIR}/debian/changelog.gz
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} COMPONENT ${component})
endfunction()

file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/debian)
configure_file(${CMAKE_CURRENT_LIST_DIR}/copyright.in ${CMAKE_BINARY_DIR}/debian/copyright @ONLY)
configure_file(${CMAKE_CURRENT_LIST_DIR}/changelog.in ${CMAKE_BINARY_DIR}/debian/changelog @ONLY)
execute_process(COMMAND gzip -9nc ${CMAKE_BINARY_DIR}/debian/changelog OUTPUT_FILE ${CMAKE_BINARY_DIR}/debian/changelog.gz COMMAND_ERROR_IS_FATAL ANY)

set(same "(= ${PROJECT_VERSION})")
tfcc_package(runtime libtfcc0 libs "runtime of compiled transformers"
  "libtfcc loads a .tfcc file and runs it, on an x86-64 CPU or an NVIDIA GPU.\nIt needs no compiler: the file holds weights, machine code and the plan.")
tfcc_package(development libtfcc-dev libdevel "runtime of compiled transformers: headers and examples"
  "What C and C++ programs are built with that run .tfcc files, generate\ntext with them or compile models in their own process." "libtfcc0 ${same}")
if(TFCC_COMPILER)
  list(APPEND CPACK_COMPONENTS_ALL compiler commands python)
  tfcc_package(compiler libtfcc-compiler0 libs "compiler of transformers as a library"
    "libtfcc_compiler turns an ONNX model into a .tfcc file, with code for\nCPUs by Clang and for NVIDIA GPUs by NVRTC.")
  tfcc_package(commands tfcc devel "ahead-of-time compiler for transformers"
    "The command tfcc compiles ONNX models of transformers to one .tfcc file,\nruns and times such files, compares them with the model, and shows what\nis in them. tfcc-embed turns sentences into vectors." "libtfcc0 ${same}")
  tfcc_package(python python3-tfcc python "compiles and runs transformers (Python 3)"
    "Compiles ONNX models and runs .tfcc files on numpy arrays and torch\ntensors, over libtfcc and libtfcc_compiler." "python3" "python3-numpy" "libtfcc0 ${same}")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS libtfcc-compiler0)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_ARCHITECTURE all)
endif()

# The files of control that a package with a shared library has.
function(tfcc_library_control component library package)
  set(folder ${CMAKE_BINARY_DIR}/debian/${component})
  file(WRITE ${folder}/triggers "activate-noawait ldconfig\n")
  file(WRITE ${folder}/shlibs "${library} ${PROJECT_VERSION_MAJOR} ${package} (>= ${PROJECT_VERSION})\n")
  file(CHMOD ${folder}/triggers ${folder}/shlibs PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA ${folder}/triggers ${folder}/shlibs PARENT_SCOPE)
endfunction()
tfcc_library_control(runtime libtfcc libtfcc0)
tfcc_library_control(compiler libtfcc_compiler libtfcc-compiler0)
include(CPack)
