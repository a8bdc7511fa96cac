/* mpi_absent.c - in the place of mpi.c where there is no MPI to build with: one rank only. */
#ifndef HAVE_MPI
#include "comm/comm_state.h"

const comm_transport *comm_mpi(void) { return NULL; }
#endif
