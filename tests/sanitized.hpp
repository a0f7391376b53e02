// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

// DISTX_TESTS_SANITIZED: whether this program is compiled with the address or the thread sanitizer.
#if defined(__has_feature)
#define DISTX_TESTS_HAVE(what) __has_feature(what)
#else
#define DISTX_TESTS_HAVE(what) 0
#endif
#if DISTX_TESTS_HAVE(address_sanitizer) || DISTX_TESTS_HAVE(thread_sanitizer) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)
#define DISTX_TESTS_SANITIZED 1
#else
#define DISTX_TESTS_SANITIZED 0
#endif
