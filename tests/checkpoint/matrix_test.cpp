// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "matrix.hpp"

using model::Any;
using model::Signs;
using model::Trainer;

namespace {

/// A training of the model, whose checkpoints differ from each other; even numbers of ranks share the weights, and at
/// stages 1 and 3 the optimizer's states are in files.
template <class Training, class T, class Optimizer>
struct Plain {
  using Ranks = int;
  static constexpr Ranks ranks[] = {1, 2, 3, 4, 8};
  static constexpr int count(int number) { return number; }

  Plain(distx::ThreadCommunicator& comm, Ranks on, int stage, std::size_t bucket_bytes, float offset)
      : trainer(comm, Optimizer{},
                {.bucket_bytes = bucket_bytes,
                 .stage = stage,
                 .share_weights = on % 2 == 0,
                 .state_folder = stage % 2 == 1 ? std::filesystem::temp_directory_path().string() : ""},
                offset) {}

  Trainer<Training, T> trainer;
};

using Half = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<distx::bfloat16>>;

}  // namespace

TEST_CASE_TEMPLATE("a checkpoint of any number of ranks at any stage loads on any other with the same bits", Training,
                   Plain<Any, float, distx::AdamW>, Plain<Any, float, Signs>,
                   Plain<Half, distx::bfloat16, distx::AdamW>, Plain<Half, distx::bfloat16, Signs>) {
  model::check_matrix<Training>();
}
