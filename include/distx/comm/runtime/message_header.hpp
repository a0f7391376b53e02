// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstdint>
#include <string>

#include "distx/core/detail/fnv1a.hpp"
#include "distx/core/element.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The properties of a message that its two ranks must agree on; sent as bytes where ranks are processes.
struct MessageHeader {
  std::uint64_t count = 0;    ///< elements
  std::uint64_t lengths = 0;  ///< hash of the lengths of a list, 0 without a list
  std::uint32_t element_bytes = 0;
  std::uint32_t type = 0;  ///< an ElementType; 32 bits, so that no byte is padding

  template <class AnySpan>
  [[nodiscard]] static MessageHeader of(const AnySpan& span, std::uint64_t lengths) noexcept {
    return {span.size(), lengths, static_cast<std::uint32_t>(span.element_bytes()),
            static_cast<std::uint32_t>(span.type())};
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return count * element_bytes; }
  friend bool operator==(const MessageHeader&, const MessageHeader&) = default;
};

/// Returns a hash of a header.
[[nodiscard]] constexpr std::uint64_t digest_of(const MessageHeader& header) noexcept {
  return fnv1a(std::array<std::uint64_t, 4>{header.count, header.lengths, header.element_bytes, header.type});
}

/// Returns how a message that this rank sends or expects differs from what `other_rank` expects or sends.
[[nodiscard]] inline std::string difference(const MessageHeader& mine, const MessageHeader& theirs, int other_rank,
                                            bool sends) {
  const auto described = [](const MessageHeader& header) {
    const auto type = static_cast<ElementType>(header.type);
    return std::to_string(header.count) + " elements of " +
           (type == ElementType::bytes ? std::to_string(header.element_bytes) + " bytes"
                                       : "type " + std::string(name_of(type)));
  };
  MessageHeader same_list = theirs;
  same_list.lengths = mine.lengths;
  return (sends ? "sends " : "expects ") + described(mine) + ", rank " + std::to_string(other_rank) +
         (sends ? " expects " : " sends ") + described(theirs) +
         (same_list == mine ? " in a list of other lengths or in another order" : "");
}

}  // namespace distx::inline DISTX_ABI::detail
