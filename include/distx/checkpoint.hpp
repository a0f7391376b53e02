// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !__has_include(<nlohmann/json.hpp>) || !__has_include(<libdeflate.h>)
#error distx/checkpoint.hpp needs nlohmann-json and libdeflate (Debian, Ubuntu: nlohmann-json3-dev, libdeflate-dev)
#endif
#include "distx/checkpoint/consolidate.hpp"
#include "distx/checkpoint/load_weights.hpp"
#include "distx/checkpoint/safetensors.hpp"
#include "distx/checkpoint/save_async.hpp"
#include "distx/checkpoint/training.hpp"
#include "distx/training.hpp"
#ifdef DISTX_COMPILED
#include "distx/checkpoint/detail/compiled.hpp"
#else
#include "distx/checkpoint/detail/definitions.hpp"
#endif
