// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// All operations on distributed tensors.
#include "distx/tensor/ops/activations.hpp"
#include "distx/tensor/ops/arithmetic.hpp"
#include "distx/tensor/ops/bias.hpp"
#include "distx/tensor/ops/causal_attention.hpp"
#include "distx/tensor/ops/contract.hpp"
#include "distx/tensor/ops/cross_entropy.hpp"
#include "distx/tensor/ops/dropout.hpp"
#include "distx/tensor/ops/elementwise.hpp"
#include "distx/tensor/ops/embedding.hpp"
#include "distx/tensor/ops/layer_norm.hpp"
#include "distx/tensor/ops/matmul.hpp"
#include "distx/tensor/ops/reduce.hpp"
#include "distx/tensor/ops/ring_attention.hpp"
#include "distx/tensor/ops/softmax.hpp"
#include "distx/tensor/ops/trailing.hpp"
#include "distx/tensor/ops/transpose.hpp"
