// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !__has_include(<gloo/transport/tcp/device.h>)
#error distx/gloo.hpp needs Gloo: install it (on Debian and Ubuntu: libgloo-dev) or leave this header out
#endif
// Data between processes of one host or several over TCP, without MPI.
#include "distx/comm.hpp"
#include "distx/gloo/communicator.hpp"
#include "distx/gloo/detail/maker.hpp"
#ifdef DISTX_COMPILED
#include "distx/gloo/detail/compiled.hpp"
#else
#include "distx/comm/detail/definitions.hpp"
#include "distx/gloo/detail/definitions.hpp"
#endif
