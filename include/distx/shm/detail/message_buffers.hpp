// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>
#include <vector>

#include "distx/shm/detail/segment.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

/// Memory for the data of one message.
using MessageBuffer = SharedSegment::Made;

/// A rank's reusable message buffers, and the buffers of other ranks that it has mapped.
class MessageBufferCache {
 public:
  /// Returns one of this rank's buffers with at least `bytes`; it is in use while the returned pointer is shared.
  [[nodiscard]] std::shared_ptr<MessageBuffer> take(std::size_t bytes) {
    for (const auto& buffer : own_)
      if (buffer.use_count() == 1 && buffer->name.bytes >= bytes) return buffer;
    const std::size_t room = bytes > kept_bytes ? bytes : std::max(least_bytes, std::bit_ceil(bytes));
    auto buffer = std::make_shared<MessageBuffer>(SharedSegment::make(room));
    if (bytes <= kept_bytes) own_.push_back(buffer);
    return buffer;
  }
  /// Maps another rank's buffer. @pre its owner has it in use
  [[nodiscard]] std::shared_ptr<SharedSegment> find(const SegmentName& name) {
    const auto same = [&](const FoundBuffer& f) { return f.inode == name.inode && f.process == name.process; };
    if (const auto known = std::find_if(found_.begin(), found_.end(), same); known != found_.end())
      return known->segment;
    auto segment = SharedSegment::find(name);
    if (name.bytes > kept_bytes) return segment;
    if (found_.size() == most_found) found_.erase(found_.begin());
    found_.push_back({name.process, name.inode, segment});
    return segment;
  }

 private:
  struct FoundBuffer {
    std::int64_t process;
    std::uint64_t inode;
    std::shared_ptr<SharedSegment> segment;
  };
  static constexpr std::size_t least_bytes = 65536;
  static constexpr std::size_t kept_bytes = std::size_t{4} << 20;  // larger ones are freed after one message
  static constexpr std::size_t most_found = 32;

  std::vector<std::shared_ptr<MessageBuffer>> own_;
  std::vector<FoundBuffer> found_;
};

}  // namespace distx::inline DISTX_ABI::detail::shm
