#!/bin/bash
# The compute capabilities that the CUDA backend is compiled for: one unless more are requested.
set -u
cmake=$(cd "$(dirname "$0")/../../cmake" && pwd) || exit 1
command -v cmake >/dev/null || { echo "cmake not found"; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
printf 'cmake_minimum_required(VERSION 3.22)\ninclude(%s)\nstring(REPLACE " " "\\n" known "${KNOWN}")\ncuda_archs(archs "${REQUEST}" "${GPUS}" "${known}")\nmessage("[${archs}]")\n' \
    "$cmake/cuda_archs.cmake" >"$work/choose.cmake"
failures=0
# chosen EXPECTED REQUEST GPUS KNOWN: what is compiled for, or a part of the refusal.
chosen() {
    local found
    found=$(cmake "-DREQUEST=$2" "-DGPUS=$3" "-DKNOWN=$4" -P "$work/choose.cmake" 2>&1 | tr -s ' \n' ' ')
    case $found in *"$1"*) ;; *) echo "FAILED: '$2', GPUs '$3', nvcc knows '$4': $found, expected $1" && failures=$((failures + 1)) ;; esac
}
new="sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120"
chosen '[90a]' "" "" "$new"
chosen '[80;89;90a;100]' all "" "$new"
chosen '[80;89;90a]' all "9.0" "sm_80 sm_89 sm_90" # an nvcc that does not know 10.0
chosen '[80;86]' "" "8.0
8.6
8.0" "$new"
chosen '[120]' 120 "9.0" "$new"
chosen '[80;90a]' "80;90" "" "$new"
chosen '[80]' "" "" "sm_75 sm_80" # an nvcc older than 9.0
chosen "'sm_90' is not a compute capability such as 90" sm_90 "" "$new"
[ $failures = 0 ] || exit 1
echo "the CUDA backend is compiled for the GPU here, for 9.0 without one, and for what is requested"
