// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !__has_include(<sys/mman.h>) || !__has_include(<sys/stat.h>)
#error "distx/shm.hpp needs the shared memory of a Linux system (<sys/mman.h>): use ThreadCommunicator or MpiCommunicator elsewhere, and do not include this header"
#endif
#include "distx/shm/communicator.hpp"
