// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

#include "nccl/ranks.hpp"

namespace nccl_test {

/// The whole arrays of a training's state, of which each rank adds its part.
class WholeArrays {
 public:
  template <class Training>
  void add(Training& training) {
    const auto state = training.state();
    const std::lock_guard lock(mutex_);
    for (const auto& array : state.arrays) {
      auto& whole = arrays_[array.name];
      whole.resize(std::accumulate(array.shape.begin(), array.shape.end(), std::size_t{1}, std::multiplies<>()));
      const auto part =
          on_host(distx::Span<float, distx::Cuda>(static_cast<float*>(array.values.data()), array.values.size()));
      std::copy(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(array.offset));
    }
  }
  [[nodiscard]] const std::vector<float>& at(const std::string& name) const { return arrays_.at(name); }
  [[nodiscard]] std::size_t size() const noexcept { return arrays_.size(); }
  friend bool operator==(const WholeArrays& a, const WholeArrays& b) {
    return !a.arrays_.empty() && a.arrays_ == b.arrays_;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> arrays_;
};

}  // namespace nccl_test
