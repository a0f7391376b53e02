// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !__has_include(<mpi.h>) || !__has_include(<boost/mpi/environment.hpp>)
#error distx/mpi.hpp needs an MPI library and Boost.MPI: install them (on Debian and Ubuntu: libopenmpi-dev and \
libboost-mpi-dev) or leave this header out
#endif
#include "distx/comm.hpp"
#include "distx/mpi/communicator.hpp"
#include "distx/mpi/detail/launcher.hpp"
#include "distx/mpi/detail/maker.hpp"
#ifdef DISTX_COMPILED
#include "distx/mpi/detail/compiled.hpp"
#else
#include "distx/comm/detail/definitions.hpp"
#include "distx/mpi/detail/definitions.hpp"
#endif
