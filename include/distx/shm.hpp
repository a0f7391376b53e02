// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !__has_include(<sys/mman.h>) || !__has_include(<sys/stat.h>)
#error "distx/shm.hpp needs the shared memory of Linux: elsewhere use ThreadCommunicator or MpiCommunicator"
#endif
#include "distx/comm.hpp"
#include "distx/shm/communicator.hpp"
#include "distx/shm/detail/maker.hpp"
#ifdef DISTX_COMPILED
#include "distx/shm/detail/compiled.hpp"
#else
#include "distx/comm/detail/definitions.hpp"
#include "distx/shm/detail/definitions.hpp"
#endif
