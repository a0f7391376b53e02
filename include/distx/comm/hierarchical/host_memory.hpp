// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "distx/comm/memory.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The memory of a hierarchical communicator that the ranks of a host share, for calls that receive into it.
/// Thread-safe.
class HostMemory {
 public:
  /// Notes memory until the returned owner of it is destroyed.
  [[nodiscard]] static std::shared_ptr<void> note(const std::shared_ptr<HostMemory>& all,
                                                  const CommonMemory<Host>& memory) {
    const std::byte* const begin = memory.span.data();
    {
      const std::lock_guard lock(all->mutex_);
      all->ranges_.push_back({begin, begin + memory.span.size()});
    }
    return {memory.owner.get(), [all, begin, owner = memory.owner](void*) {
              const std::lock_guard lock(all->mutex_);
              std::erase_if(all->ranges_, [&](const HostRange& range) { return range.begin == begin; });
            }};
  }
  /// Returns whether the ranks of this host share all of these bytes.
  [[nodiscard]] bool contains(Span<const std::byte> bytes) const {
    const std::lock_guard lock(mutex_);
    const std::less_equal<> before;
    return !bytes.empty() && std::any_of(ranges_.begin(), ranges_.end(), [&](const HostRange& range) {
      return before(range.begin, bytes.data()) && before(bytes.data() + bytes.size(), range.end);
    });
  }

 private:
  struct HostRange {
    const std::byte *begin, *end;
  };
  mutable std::mutex mutex_;
  std::vector<HostRange> ranges_;
};

}  // namespace distx::inline DISTX_ABI::detail
