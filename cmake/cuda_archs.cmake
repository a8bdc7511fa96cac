# cuda_archs.cmake - the compute capabilities that the CUDA backend is compiled for.
#
# Each capability costs minutes of nvcc. Without a request the backend is compiled only for the GPUs of this machine or,
# if it has none, for 9.0, the only capability that has been run. Releases and containers request `all`.

# cuda_archs(result REQUEST GPUS KNOWN): the list for nvcc.
#   REQUEST   RALO_CUDA_ARCHS: empty, `all` or a list such as 80;90
#   GPUS      what nvidia-smi prints as compute_cap, such as 9.0; empty: no GPU here
#   KNOWN     what nvcc --list-gpu-code prints
function(cuda_archs result request gpus known)
    set(release "")
    foreach(arch 80 89 90 100)
        if("${known}\n" MATCHES "sm_${arch}\n")
            list(APPEND release ${arch})
        endif()
    endforeach()
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" archs "${gpus}")
    string(REPLACE "." "" archs "${archs}")
    list(REMOVE_DUPLICATES archs)
    if(request STREQUAL "all")
        set(archs ${release})
    elseif(request)
        foreach(arch ${request})
            if(NOT arch MATCHES "^[0-9]+[af]?$")
                message(FATAL_ERROR "RALO_CUDA_ARCHS=${request}: '${arch}' is not a compute capability such as 90, and not 'all' alone")
            endif()
        endforeach()
        set(archs ${request})
    elseif(NOT archs AND 90 IN_LIST release)
        set(archs 90)
    elseif(NOT archs)
        set(archs ${release})
    endif()
    # Some instructions of 9.0 exist for 90a alone, which every GPU of 9.0 runs.
    list(TRANSFORM archs REPLACE "^90$" "90a")
    set(${result} "${archs}" PARENT_SCOPE)
endfunction()
