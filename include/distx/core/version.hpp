// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#if __cplusplus < 202002L
#error distx: this program is compiled as an older C++; add -std=c++20 or, in Meson, cpp_std=c++20
#endif

/// The version of distx: 10000 times its major, 100 times its minor, and its patch number.
#define DISTX_VERSION 100

// What does not depend on a program's types is defined in headers `*definitions.hpp`. An entry header such as comm.hpp
// declares it and, in the header-only form, ends by including its definitions. In the compiled form, which
// `-DDISTX_COMPILED=extern` selects, the files of distx/compiled/ include them, once in a program.
//
// All names are in an inline namespace of the version and the form: files of a program that differ in one of these do
// not share functions, and an object that one passes to another is an undefined symbol that names both.
#ifdef DISTX_COMPILED
#define DISTX_INLINE
#define DISTX_ABI v0_1_0_compiled
#else
#define DISTX_INLINE inline
#define DISTX_ABI v0_1_0_header_only
#endif
