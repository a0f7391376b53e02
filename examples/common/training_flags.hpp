// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace examples {

/// The flags that every training program has.
struct TrainingFlags {
  int zero = 0;
  std::string precision = "f32";
  std::string compress = "none";  ///< how gradients of float are averaged, or weights gathered, lossily in fewer bytes
  std::string optimizer = "adamw";
  std::size_t accumulate = 1;
  double clip = std::numeric_limits<double>::infinity();
  std::optional<double> learning_rate{};
  std::size_t bucket_kib = 256;
  bool gather_weights = false;                  ///< at stage 3, also where ranks share memory
  std::string state_folder{};                   ///< of files for optimizer states; empty: they are in memory
  bool offload = false;                         ///< keeps what a GPU's optimizer needs in host memory
  bool elastic = false;                         ///< continues on other ranks; only where a program does
  bool reproducible = false;                    ///< one result at any number of ranks; only where a program offers it
  std::map<std::string, double> usual_rates{};  ///< by optimizer, for this model

  static constexpr int virtual_ranks = 8;  ///< of a reproducible training: micro-batches of a step of all ranks

  void describe(CLI::App& app);

  /// @throws distx::Error for a batch that the micro-batches do not divide, or an invalid learning rate or norm
  void check(const std::string& batch_flag, std::size_t batch) const;

  /// If the training is reproducible, sets a rank's micro-batches, where there are `ranks`, and multiplies its batch by
  /// their number.
  void split_step(int ranks, std::size_t& batch);

  /// The peak learning rate.
  [[nodiscard]] double rate() const { return learning_rate ? *learning_rate : usual_rates.at(optimizer); }
  [[nodiscard]] bool short_weights() const { return precision == "bf16"; }
};

}  // namespace examples
