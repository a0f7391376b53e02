// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// All operations on distributed tensors.
#include "distx/tensor/activations.hpp"
#include "distx/tensor/arithmetic.hpp"
#include "distx/tensor/bias.hpp"
#include "distx/tensor/causal_attention.hpp"
#include "distx/tensor/contract.hpp"
#include "distx/tensor/cross_entropy.hpp"
#include "distx/tensor/elementwise.hpp"
#include "distx/tensor/embedding.hpp"
#include "distx/tensor/layer_norm.hpp"
#include "distx/tensor/matmul.hpp"
#include "distx/tensor/reduce.hpp"
#include "distx/tensor/softmax.hpp"
#include "distx/tensor/trailing.hpp"
#include "distx/tensor/transpose.hpp"
