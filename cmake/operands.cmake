# Names for the operands of every op, from the rows of src/engine/program/ops.def: LINEAR_X, LINEAR_W, LINEAR_B are
# places among the inputs of LINEAR, LINEAR_Y one among its outputs. Written to generated/program/operands.h in the
# build directory, which program/program.h includes. It is written again when ops.def changes, and only where that
# changes a name.
set(ops_def ${CMAKE_SOURCE_DIR}/src/engine/program/ops.def)
set(RALO_GENERATED ${CMAKE_BINARY_DIR}/generated)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ops_def})

file(READ ${ops_def} table)
string(REGEX MATCHALL "\n[A-Z]*_?OP\\([A-Z0-9_]+, \"[^\"]*\", \"[^\"]*\"" rows "${table}")
set(text "#pragma once\n/* operands.h - made from ops.def by cmake/operands.cmake: the place of every operand of every op. */\n")
foreach(row ${rows})
    string(REGEX MATCH "OP\\(([A-Z0-9_]+), \"([^\"]*)\", \"([^\"]*)\"" row "${row}")
    set(op ${CMAKE_MATCH_1})
    set(lists "${CMAKE_MATCH_2}" "${CMAKE_MATCH_3}")
    foreach(list IN LISTS lists)
        string(REGEX REPLACE "[^a-z0-9_ ]" "" list "${list}")
        string(TOUPPER "${list}" list)
        string(REPLACE " " ", ${op}_" list "${list}")
        if(list)
            string(APPEND text "enum { ${op}_${list} };\n")
        endif()
    endforeach()
endforeach()
file(CONFIGURE OUTPUT ${RALO_GENERATED}/program/operands.h CONTENT "${text}" @ONLY)
