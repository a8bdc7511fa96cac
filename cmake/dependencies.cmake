# dependencies.cmake - find the libraries, print what was found, and say once and clearly what is missing.
#
# pkg-config gives hints and versions only; a header and a library on disk decide. On a host where nothing can be
# installed some libraries are the system's and some lie in an unpacked sysroot: there PKG_CONFIG_SYSROOT_DIR bends the
# system's paths too, and only looking at the files tells which are real. CPATH and LIBRARY_PATH are searched as the
# compiler would.
# Refuses the serial OpenBLAS: it is not safe to call from several threads.

find_package(PkgConfig QUIET)

string(REPLACE ":" ";" CPATH_DIRS "$ENV{CPATH}:$ENV{C_INCLUDE_PATH}")
string(REPLACE ":" ";" LIBRARY_PATH_DIRS "$ENV{LIBRARY_PATH}")

# In each: lines of "name|what was found" and "name|package" for the reports at the end.
set(FOUND_LINES "")
set(MISSING_LINES "")
set(MISSING_PACKAGES "")

function(pkg_hints name module)
    if(PKG_CONFIG_FOUND)
        pkg_check_modules(PC_${name} QUIET ${module})
    endif()
    set(${name}_VERSION "${PC_${name}_VERSION}" PARENT_SCOPE)
    set(${name}_INCLUDE_HINTS ${CPATH_DIRS} ${PC_${name}_INCLUDE_DIRS} ${PC_${name}_INCLUDEDIR} PARENT_SCOPE)
    set(${name}_LIBRARY_HINTS ${LIBRARY_PATH_DIRS} ${PC_${name}_LIBRARY_DIRS} ${PC_${name}_LIBDIR} PARENT_SCOPE)
endfunction()

function(import_library name)
    add_library(dep_${name} UNKNOWN IMPORTED GLOBAL)
    set_target_properties(dep_${name} PROPERTIES
        IMPORTED_LOCATION "${${name}_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${${name}_INCLUDE_DIR}")
endfunction()

# find_dependency(name pkg-config-module header library): sets name_FOUND; where found, makes the target dep_name.
function(find_dependency name module header library)
    pkg_hints(${name} ${module})
    find_path(${name}_INCLUDE_DIR ${header} HINTS ${${name}_INCLUDE_HINTS})
    find_library(${name}_LIBRARY ${library} HINTS ${${name}_LIBRARY_HINTS})
    mark_as_advanced(${name}_INCLUDE_DIR ${name}_LIBRARY)
    if(${name}_INCLUDE_DIR AND ${name}_LIBRARY)
        import_library(${name})
        set(${name}_FOUND TRUE PARENT_SCOPE)
    else()
        set(${name}_FOUND FALSE PARENT_SCOPE)
    endif()
    set(${name}_VERSION "${${name}_VERSION}" PARENT_SCOPE)
endfunction()

# Debian keeps the variants of OpenBLAS in directories of their own and lets one of them answer to the plain name, so
# the pthread directory is tried everywhere before any plain one.
function(find_openblas)
    pkg_hints(openblas openblas)
    set(include_dirs ${openblas_INCLUDE_HINTS} /usr/include/${CMAKE_LIBRARY_ARCHITECTURE} /usr/include)
    set(library_dirs ${openblas_LIBRARY_HINTS} /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} /usr/lib)
    list(TRANSFORM include_dirs APPEND "/openblas-pthread" OUTPUT_VARIABLE pthread_include_dirs)
    list(TRANSFORM library_dirs APPEND "/openblas-pthread" OUTPUT_VARIABLE pthread_library_dirs)
    find_path(openblas_INCLUDE_DIR cblas.h PATHS ${pthread_include_dirs} NO_DEFAULT_PATH)
    find_path(openblas_INCLUDE_DIR cblas.h HINTS ${openblas_INCLUDE_HINTS} PATH_SUFFIXES openblas)
    find_library(openblas_LIBRARY openblas PATHS ${pthread_library_dirs} NO_DEFAULT_PATH)
    find_library(openblas_LIBRARY openblas HINTS ${openblas_LIBRARY_HINTS})
    mark_as_advanced(openblas_INCLUDE_DIR openblas_LIBRARY)
    set(openblas_FOUND FALSE PARENT_SCOPE)
    if(openblas_INCLUDE_DIR AND openblas_LIBRARY)
        file(REAL_PATH "${openblas_LIBRARY}" file)
        if(file MATCHES "serial")
            message(FATAL_ERROR "The only OpenBLAS here is the serial build (${file}), which is not safe to call from "
                "several threads.\nInstall libopenblas-pthread-dev, or run `make deps`; then `make clean`.")
        endif()
        import_library(openblas)
        set(openblas_FOUND TRUE PARENT_SCOPE)
        # The version of what was taken, which pkg-config need not describe.
        set(version "")
        if(EXISTS "${openblas_INCLUDE_DIR}/openblas_config.h")
            file(STRINGS "${openblas_INCLUDE_DIR}/openblas_config.h" line REGEX "define OPENBLAS_VERSION")
            string(REGEX MATCH "[0-9]+\\.[0-9.]+[0-9]" version "${line}")
        endif()
        set(openblas_TEXT "OpenBLAS ${version}, ${openblas_LIBRARY}" PARENT_SCOPE)
    endif()
endfunction()

macro(report name text)
    list(APPEND FOUND_LINES "${name}|${text}")
endmacro()

macro(missing name package)
    list(APPEND MISSING_LINES "${name}|${package}")
    list(APPEND MISSING_PACKAGES ${package})
endmacro()

report(compiler "${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}, ${CMAKE_SYSTEM_PROCESSOR}")

find_openblas()
if(openblas_FOUND)
    report(BLAS "${openblas_TEXT}")
else()
    missing(OpenBLAS libopenblas-pthread-dev)
endif()

# name, pkg-config module, header, library, Debian package
foreach(row "hwloc|hwloc|hwloc.h|hwloc|libhwloc-dev" "jansson|jansson|jansson.h|jansson|libjansson-dev"
            "libyaml|yaml-0.1|yaml.h|yaml|libyaml-dev" "xxhash|libxxhash|xxhash.h|xxhash|libxxhash-dev"
            "pcre2|libpcre2-8|pcre2.h|pcre2-8|libpcre2-dev" "utf8proc|libutf8proc|utf8proc.h|utf8proc|libutf8proc-dev")
    string(REPLACE "|" ";" row "${row}")
    list(GET row 0 name)
    list(GET row 1 2 3 arguments)
    list(GET row 4 package)
    find_dependency(${name} ${arguments})
    if(NOT ${name}_FOUND)
        missing(${name} ${package})
    endif()
endforeach()
if(hwloc_FOUND)
    report(hwloc "${hwloc_VERSION}")
endif()
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

if(MISSING_LINES)
    set(text "")
    foreach(line ${MISSING_LINES})
        string(REPLACE "|" " not found; Debian and Ubuntu have it in " line "${line}")
        string(APPEND text "  ${line}\n")
    endforeach()
    list(JOIN MISSING_PACKAGES " " packages)
    message(FATAL_ERROR "ralo needs libraries that are not here:\n${text}"
        "Run `make deps`, or: apt-get install ${packages}")
endif()

# Only tests need it: their targets say so when it is missing.
find_dependency(cmocka cmocka cmocka.h cmocka)

# Many ranks; mpirun is asked for at run time. Open MPI by name: another MPI's mpi.h may answer to the plain one.
# Its wrapper knows where it lies, also where a sysroot bends what pkg-config says.
find_program(MPICC mpicc)
mark_as_advanced(MPICC)
if(MPICC)
    execute_process(COMMAND ${MPICC} --showme:incdirs OUTPUT_VARIABLE mpi_include_dirs ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    execute_process(COMMAND ${MPICC} --showme:libdirs OUTPUT_VARIABLE mpi_library_dirs ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    separate_arguments(mpi_include_dirs)
    separate_arguments(mpi_library_dirs)
    find_path(mpi_INCLUDE_DIR mpi.h HINTS ${mpi_include_dirs})
    find_library(mpi_LIBRARY mpi HINTS ${mpi_library_dirs})
endif()
find_dependency(mpi ompi-c mpi.h mpi)
if(mpi_FOUND)
    report(MPI "Open MPI ${mpi_VERSION}, ${mpi_LIBRARY}")
else()
    report(MPI "not found: one rank only (libopenmpi-dev, openmpi-bin)")
endif()
find_program(NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
mark_as_advanced(NVCC)
if(NVCC)
    execute_process(COMMAND ${NVCC} --version OUTPUT_VARIABLE text ERROR_VARIABLE text)
    string(REGEX MATCH "release [0-9.]+[0-9]" version "${text}")
    if(DEFINED RALO_CUDA AND NOT RALO_CUDA)
        report(CUDA "${version} ${NVCC}: RALO_CUDA is off, no CUDA backend")
    else()
        report(CUDA "${version} ${NVCC}: the CUDA backend is built")
    endif()
else()
    report(CUDA "nvcc not found: no CUDA backend")
endif()
find_dependency(liburing liburing liburing.h uring)
if(liburing_FOUND)
    report(io_uring "liburing ${liburing_VERSION}")
else()
    report(io_uring "not found: nvme offload goes through pread and pwrite")
endif()
# Its header alone: the library is loaded when the reward http or the sink mlflow is used.
pkg_hints(curl libcurl)
find_path(curl_INCLUDE_DIR curl/curl.h HINTS ${curl_INCLUDE_HINTS})
mark_as_advanced(curl_INCLUDE_DIR)
if(curl_INCLUDE_DIR)
    report(curl "libcurl ${curl_VERSION}")
else()
    report(curl "not found: no rewards over HTTP, no MLflow server (libcurl4-openssl-dev)")
endif()
# Likewise: loaded when a live page is opened.
pkg_hints(microhttpd libmicrohttpd)
find_path(microhttpd_INCLUDE_DIR microhttpd.h HINTS ${microhttpd_INCLUDE_HINTS})
mark_as_advanced(microhttpd_INCLUDE_DIR)
if(microhttpd_INCLUDE_DIR)
    report(microhttpd "libmicrohttpd ${microhttpd_VERSION}")
else()
    report(microhttpd "not found: no live page (libmicrohttpd-dev)")
endif()
if(NOT cmocka_FOUND)
    report(cmocka "not found: no tests")
endif()

foreach(line ${FOUND_LINES})
    string(REGEX MATCH "^([^|]*)\\|(.*)$" line "${line}")
    string(SUBSTRING "${CMAKE_MATCH_1}            " 0 11 name)
    message(NOTICE "  ${name}${CMAKE_MATCH_2}")
endforeach()
