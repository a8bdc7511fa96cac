# cuda.cmake - the CUDA backend as a plug-in, libralo-cuda.so: built where nvcc is found, loaded where a GPU is.
#
# Nothing else links a CUDA library, so the same program runs on machines without one. The plug-in takes what it needs
# of libralo-engine.a as a copy of its own, hidden.
#   RALO_CUDA          OFF: do not build it
#   RALO_CUDA_ARCHS    compute capabilities such as 80;90, or all (80 89 90 100, as far as nvcc knows them);
#                      else that of the GPU here; else 90
# `make` builds it. Where a GPU is, the program depends on it, so that `make run` and the tests have it too.

option(RALO_CUDA "build the CUDA backend where nvcc is found" ON)
set(RALO_CUDA_ARCHS "" CACHE STRING "compute capabilities for the CUDA backend, such as 80;90, or all; empty: of the GPU here, or 90")
include(cmake/cuda_archs.cmake)
# Not with sanitizers: their runtimes and the driver do not go together, and host code of the plug-in is thin.
set(cuda_works FALSE)
if(NVCC AND RALO_CUDA AND NOT RALO_SANITIZE AND NOT RALO_FUZZ)
    # An nvcc that does not go with this compiler, or without cuBLAS beside it, is no reason not to build the rest.
    include(CheckLanguage)
    set(ENV{CUDACXX} ${NVCC})
    check_language(CUDA)
    find_package(CUDAToolkit QUIET)
    if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cublasLt AND TARGET CUDA::cuda_driver)
        set(cuda_works TRUE)
    else()
        message(NOTICE "  CUDA      ${NVCC} does not work here, or has no cuBLAS beside it: no CUDA backend")
    endif()
endif()
if(cuda_works)
    set(CMAKE_CUDA_ARCHITECTURES OFF) # written out below
    enable_language(CUDA)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE gpus ERROR_QUIET
        RESULT_VARIABLE no_gpu)
    execute_process(COMMAND ${NVCC} --list-gpu-code OUTPUT_VARIABLE known)
    if(no_gpu)
        set(gpus "")
    endif()
    cuda_archs(RALO_CUDA_ARCHS "${RALO_CUDA_ARCHS}" "${gpus}" "${known}")
    list(JOIN RALO_CUDA_ARCHS " " archs)
    message(NOTICE "  CUDA      compiled for compute capabilities: ${archs} (RALO_CUDA_ARCHS chooses others)")
    file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS src/engine/backend/cuda/*.c src/engine/backend/cuda/*.cu)
    add_library(cuda MODULE ${CUDA_SOURCES})
    set_target_properties(cuda PROPERTIES OUTPUT_NAME ralo-cuda LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
        C_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON LINKER_LANGUAGE CUDA
        CUDA_STANDARD 17 CUDA_RUNTIME_LIBRARY Static)
    target_include_directories(cuda PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    # fmad=false: as in C, fma is written where it is meant.
    set(cuda_flags -fmad=false --expt-relaxed-constexpr -lineinfo)
    foreach(arch ${RALO_CUDA_ARCHS})
        list(APPEND cuda_flags "SHELL:-gencode arch=compute_${arch},code=sm_${arch}")
    endforeach()
    target_compile_options(cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>)
    if(90a IN_LIST RALO_CUDA_ARCHS)
        target_compile_definitions(cuda PRIVATE HAVE_SM90A)
    endif()
    target_link_libraries(cuda PRIVATE ralo-engine CUDA::cublasLt CUDA::cuda_driver)
    target_link_options(cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,-z,defs)
    add_dependencies(program cuda)
    if(NOT no_gpu)
        add_dependencies(ralo cuda)
    endif()
endif()
