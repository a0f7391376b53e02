// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

// Functions that the compiled part of the library defines are not inline in programs that link it. Their definitions
// are in headers `*_calls.hpp`, which such programs do not include.
#ifdef DISTX_COMPILED
#define DISTX_INLINE
#else
#define DISTX_INLINE inline
#endif
