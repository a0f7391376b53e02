// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cerrno>
#include <string>
#include <string_view>

#include "distx/core/error.hpp"

namespace distx::detail {

/// Why a communicator was revoked.
///
/// A mismatch concerns every rank: those that are notified before they have compared the calls themselves throw
/// MismatchError, too. A failed allocation is a RevokedError with the code ENOMEM on the other ranks. Ranks publish
/// reasons to each other as text, in which a mark in front denotes either.
struct RevocationReason {
  std::string text;
  bool mismatch = false;
  bool memory = false;  ///< an allocation has failed

  /// Returns the reason that an exception gives.
  [[nodiscard]] static RevocationReason of(const Error& error) {
    const bool memory = dynamic_cast<const MemoryError*>(&error) != nullptr;
    return {(memory ? "out of memory: " : "") + std::string(error.what()),
            dynamic_cast<const MismatchError*>(&error) != nullptr, memory};
  }
  [[nodiscard]] static RevocationReason parse(std::string_view published) {
    const char front = published.empty() ? '\0' : published.front();
    const bool marked = front == mismatch_mark || front == memory_mark;
    return {std::string(published.substr(marked ? 1 : 0)), front == mismatch_mark, front == memory_mark};
  }
  [[nodiscard]] std::string published() const {
    return mismatch ? mismatch_mark + text : memory ? memory_mark + text : text;
  }
  /// Returns the reason as the other ranks report it.
  [[nodiscard]] RevocationReason by(int rank) const {
    return {"rank " + std::to_string(rank) + " revoked the communicator: " + text, mismatch, memory};
  }

  /// Returns the code of the RevokedError.
  [[nodiscard]] int code() const noexcept { return memory ? ENOMEM : 0; }
  /// Throws MismatchError the first time if it is one, otherwise RevokedError.
  [[noreturn]] void raise(const ErrorContext& context) {
    if (std::exchange(mismatch, false)) throw MismatchError(text, context);
    throw RevokedError(text, context, code());
  }

 private:
  static constexpr char mismatch_mark = '\x01', memory_mark = '\x02';
};

}  // namespace distx::detail
