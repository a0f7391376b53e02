// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// Memory-mapped files of tokens, on POSIX systems.
#include "distx/data/file/token_file.hpp"
