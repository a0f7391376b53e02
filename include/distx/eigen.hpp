// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#if !__has_include(<Eigen/Core>)
#error distx/eigen.hpp needs Eigen: install it (on Debian and Ubuntu: libeigen3-dev) or leave this header out
#endif
#include "distx/eigen/map.hpp"
#include "distx/eigen/product.hpp"
