# uninstall.cmake - remove what `make install` put under PREFIX: cmake -DLIST=BUILD/installed.txt -DPREFIX=DIR -P this.
# Files of the list only; directories stay, because others may have made them. DESTDIR is taken from the environment.
file(STRINGS "${LIST}" files)
foreach(file ${files})
    set(path "$ENV{DESTDIR}${PREFIX}/${file}")
    if(EXISTS "${path}" OR IS_SYMLINK "${path}")
        message(STATUS "Removing ${path}")
        file(REMOVE "${path}")
    endif()
endforeach()
