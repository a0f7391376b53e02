// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Ranks that meet in a folder: the standard library is enough for it, and its file streams take a second to compile.
#include "distx/connect/file.hpp"
#include "distx/connect/file/launcher.hpp"
