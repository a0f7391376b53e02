// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "distx/comm/runtime/basic_communicator_definitions.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Why a rank refuses a step of a collective request; sent from rank to rank as bytes.
struct Refusal {
  enum class Kind : std::uint32_t { none, argument, mismatch, memory };

  Kind kind = Kind::none;
  std::int32_t code = 0;
  char text[504] = {};

  [[nodiscard]] static Refusal of(Kind kind, std::string_view reason, int code) noexcept {
    Refusal refusal{kind, code};
    refusal.text[reason.copy(refusal.text, sizeof refusal.text - 1)] = '\0';
    return refusal;
  }
  [[nodiscard]] std::exception_ptr error(const std::string& prefix, const ErrorContext& context) const {
    const std::string message = prefix + text;
    if (kind == Kind::argument) return std::make_exception_ptr(InvalidArgument(message, context, code));
    if (kind == Kind::mismatch) return std::make_exception_ptr(MismatchError(message, context, code));
    return std::make_exception_ptr(MemoryError(message, context, code));
  }
};

/// Runs a step of a collective request on every rank. Returns the error to throw if any rank refuses by
/// InvalidArgument, MismatchError, MemoryError or std::bad_alloc: its own reason, or that of the first rank that
/// refuses. Other errors are thrown. Collective.
template <class Backend, class Step>
[[nodiscard]] std::exception_ptr refusal_of_any(Backend& backend, const ErrorContext& context, Step&& step) {
  Refusal mine;
  try {
    step();
  } catch (const InvalidArgument& error) {
    mine = Refusal::of(Refusal::Kind::argument, error.message(), error.code());
  } catch (const MismatchError& error) {
    mine = Refusal::of(Refusal::Kind::mismatch, error.message(), error.code());
  } catch (const MemoryError& error) {
    mine = Refusal::of(Refusal::Kind::memory, error.message(), error.code());
  } catch (const std::bad_alloc&) {
    mine = Refusal::of(Refusal::Kind::memory, "out of memory", ENOMEM);
  }
  const auto all = all_gathered(backend, mine, context.location);
  if (mine.kind != Refusal::Kind::none) return mine.error("", context);
  const auto first = std::ranges::find_if(all, [](const Refusal& r) { return r.kind != Refusal::Kind::none; });
  if (first == all.end()) return nullptr;
  return first->error("rank " + std::to_string(first - all.begin()) + ": ", context);
}

}  // namespace distx::inline DISTX_ABI::detail
