# public.cmake - what is installed: the program, the library in both forms, its header, man page, completions, ralo.pc, the Python module.
#
# The rooms are compiled once, position independent and hidden, and serve the program, the tests and both public forms:
#   libralo.so   src/api and what it reaches; a version script shows ralo_* only, as RALO_0
#   libralo.a    the same joined into one object whose hidden symbols are made local: names such as plan_open or log_write
#                cannot meet a program's own
# Everything public lies in BUILD/public; `cmake --build BUILD --target public` makes it.

set(PUBLIC ${CMAKE_BINARY_DIR}/public)
file(MAKE_DIRECTORY ${PUBLIC})
file(STRINGS include/ralo.h version_line REGEX "^#define RALO_VERSION \"")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" RALO_VERSION "${version_line}")
string(REGEX MATCH "^[0-9]+" RALO_ABI "${RALO_VERSION}")

set(API_OBJECTS "$<FILTER:$<TARGET_OBJECTS:ralo-app>,INCLUDE,/src/app/api/>")

add_library(shared SHARED ${API_OBJECTS})
set_target_properties(shared PROPERTIES OUTPUT_NAME ralo VERSION ${RALO_VERSION} SOVERSION ${RALO_ABI} LINKER_LANGUAGE C
    LIBRARY_OUTPUT_DIRECTORY ${PUBLIC} LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/libralo.map)
target_link_libraries(shared PRIVATE ralo-app)
target_link_options(shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/libralo.map)
if(NOT RALO_SANITIZE) # the sanitizers' own symbols come with the program
    target_link_options(shared PRIVATE -Wl,-z,defs)
endif()

set(ARCHIVES ${STOREYS})
list(REVERSE ARCHIVES)
list(TRANSFORM ARCHIVES REPLACE "(.+)" "$<TARGET_FILE:ralo-\\1>")
add_custom_command(OUTPUT ${PUBLIC}/libralo.a
    COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -o ${PUBLIC}/ralo.o ${API_OBJECTS}
        ${ARCHIVES}
    COMMAND ${CMAKE_OBJCOPY} --localize-hidden ${PUBLIC}/ralo.o
    COMMAND ${CMAKE_COMMAND} -E rm -f ${PUBLIC}/libralo.a
    COMMAND ${CMAKE_AR} rcs ${PUBLIC}/libralo.a ${PUBLIC}/ralo.o
    COMMAND ${CMAKE_COMMAND} -E rm -f ${PUBLIC}/ralo.o
    DEPENDS ${ARCHIVES} COMMENT "Linking public/libralo.a" COMMAND_EXPAND_LISTS VERBATIM)

# Written by the program itself, from the tables that its parser reads.
set(SAYS ${CMAKE_COMMAND} -E env ASAN_OPTIONS=detect_leaks=0 $<TARGET_FILE:ralo>)
add_custom_command(OUTPUT ${PUBLIC}/ralo.1 ${PUBLIC}/ralo.bash ${PUBLIC}/_ralo
    COMMAND ${SAYS} help man > ${PUBLIC}/ralo.1
    COMMAND ${SAYS} completion bash > ${PUBLIC}/ralo.bash
    COMMAND ${SAYS} completion zsh > ${PUBLIC}/_ralo
    DEPENDS ralo COMMENT "Writing the man page and completions" VERBATIM)

# For programs that link libralo.a: a library goes by its pkg-config module where that module alone is enough to link, else
# by its own name (hwloc's asks for -ludev, which need not be there). OpenBLAS always: its module may describe another
# variant than the one that was chosen.
set(PC_REQUIRES "")
set(PC_LIBS "")
set(rows "openblas|" "hwloc|hwloc" "jansson|jansson" "libyaml|yaml-0.1" "xxhash|libxxhash" "pcre2|libpcre2-8"
    "utf8proc|libutf8proc")
if(liburing_FOUND)
    list(APPEND rows "liburing|liburing")
endif()
if(mpi_FOUND)
    list(APPEND rows "mpi|ompi-c")
endif()
foreach(row ${rows})
    string(REPLACE "|" ";" row "${row}")
    list(GET row 0 name)
    list(GET row 1 module)
    set(whole FALSE)
    if(module AND PC_${name}_FOUND)
        set(whole TRUE)
        foreach(library ${PC_${name}_STATIC_LIBRARIES})
            find_library(found_${library} ${library} HINTS ${PC_${name}_STATIC_LIBRARY_DIRS})
            mark_as_advanced(found_${library})
            if(NOT found_${library})
                set(whole FALSE)
            endif()
        endforeach()
    endif()
    if(whole)
        list(APPEND PC_REQUIRES ${module})
    else()
        get_filename_component(directory "${${name}_LIBRARY}" DIRECTORY)
        get_filename_component(file "${${name}_LIBRARY}" NAME_WE)
        string(REGEX REPLACE "^lib" "" file "${file}")
        if(NOT directory IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
            list(APPEND PC_LIBS -L${directory})
        endif()
        list(APPEND PC_LIBS -l${file})
    endif()
endforeach()
list(APPEND PC_LIBS -lm -pthread)
list(JOIN PC_REQUIRES ", " PC_REQUIRES)
list(JOIN PC_LIBS " " PC_LIBS)
configure_file(cmake/ralo.pc.in ${PUBLIC}/ralo.pc @ONLY)

add_custom_target(public ALL DEPENDS ralo shared ${PUBLIC}/libralo.a ${PUBLIC}/ralo.1)

install(TARGETS ralo RUNTIME DESTINATION bin)
install(TARGETS shared LIBRARY DESTINATION lib)
if(TARGET cuda) # where `make` was asked for it
    install(TARGETS cuda LIBRARY DESTINATION lib OPTIONAL)
endif()
install(FILES ${PUBLIC}/libralo.a DESTINATION lib)
install(FILES include/ralo.h DESTINATION include)
install(FILES ${PUBLIC}/ralo.pc DESTINATION lib/pkgconfig)
install(FILES ${PUBLIC}/ralo.1 DESTINATION share/man/man1)
install(FILES ${PUBLIC}/ralo.bash DESTINATION share/bash-completion/completions RENAME ralo)
install(FILES ${PUBLIC}/_ralo DESTINATION share/zsh/site-functions)
# Not where one Python looks by itself: it is for any of them, virtual environments too. ralo.pc names the directory.
install(FILES bindings/python/ralo/__init__.py bindings/python/ralo/_library.py DESTINATION share/ralo/python/ralo)
# For `make uninstall`; cli_install holds it against what is really installed.
string(JOIN "\n" files bin/ralo include/ralo.h lib/libralo.a lib/libralo.so lib/libralo.so.${RALO_ABI}
    lib/libralo.so.${RALO_VERSION} lib/pkgconfig/ralo.pc share/man/man1/ralo.1 share/bash-completion/completions/ralo
    share/zsh/site-functions/_ralo share/ralo/python/ralo/__init__.py share/ralo/python/ralo/_library.py lib/libralo-cuda.so)
file(WRITE ${CMAKE_BINARY_DIR}/installed.txt "${files}\n")
