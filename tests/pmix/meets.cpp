// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A rank that mpirun starts without MPI; arguments: the case and, for some, the expected connector.
#include <distx/pmix.hpp>

#include "../connect/meets.cpp"
