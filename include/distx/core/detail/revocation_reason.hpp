// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>
#include <string_view>

#include "distx/core/error.hpp"

namespace distx::detail {

/// Why a communicator was revoked.
///
/// A mismatch concerns every rank: those that are notified before they have compared the calls themselves throw
/// MismatchError, too. Ranks publish reasons to each other as text, in which a mark in front denotes a mismatch.
struct RevocationReason {
  /// Begins the text of a MemoryError.
  static constexpr std::string_view out_of_memory = "out of memory";

  std::string text;
  bool mismatch = false;

  /// Returns the reason that an exception gives.
  [[nodiscard]] static RevocationReason of(const Error& error) {
    const bool memory = dynamic_cast<const MemoryError*>(&error) != nullptr;
    return {(memory ? std::string(out_of_memory) + ": " : "") + error.what(),
            dynamic_cast<const MismatchError*>(&error) != nullptr};
  }
  [[nodiscard]] static RevocationReason parse(std::string_view published) {
    const bool marked = published.starts_with(mark);
    return {std::string(published.substr(marked ? 1 : 0)), marked};
  }
  [[nodiscard]] std::string published() const { return mismatch ? mark + text : text; }
  /// Returns the reason as the other ranks report it.
  [[nodiscard]] RevocationReason by(int rank) const {
    return {"rank " + std::to_string(rank) + " revoked the communicator: " + text, mismatch};
  }

  /// Throws MismatchError the first time if it is one, otherwise RevokedError.
  [[noreturn]] void raise(const ErrorContext& context) {
    if (std::exchange(mismatch, false)) throw MismatchError(text, context);
    throw RevokedError(text, context);
  }

 private:
  static constexpr char mark = '\x01';
};

}  // namespace distx::detail
