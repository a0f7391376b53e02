// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/mpi.hpp>

/// The ranks that mpirun has started; the main function connects them before the first test.
distx::MpiConnector& world();
