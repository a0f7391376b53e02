// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <map>
#include <mutex>

#include "distx/connect/failure_channel.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The failure channel of ranks in one process.
class LocalFailureChannel final : public FailureChannel {
 public:
  void publish(std::uint64_t identity, const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    try {
      reasons_.emplace(identity, reason);
    } catch (...) {
      lost_ = true;  // without memory for the reason, every identity reports a failure
    }
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = reasons_.find(identity); found != reasons_.end()) return found->second;
    if (lost_) return "a failure whose reason could not be stored: out of memory";
    return std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::string> reasons_;
  bool lost_ = false;
};

}  // namespace distx::inline DISTX_ABI::detail
