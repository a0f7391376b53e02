// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the value of an environment variable, empty if it is not set.
[[nodiscard]] inline std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

[[nodiscard]] inline bool is_set(const char* name) { return !variable(name).empty(); }

/// Returns a number that is written in digits alone, with a sign at most.
template <class Number>
[[nodiscard]] std::optional<Number> parse_number(std::string_view text) noexcept {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}
[[nodiscard]] inline std::optional<int> parse_int(std::string_view text) noexcept { return parse_number<int>(text); }

/// The largest number of ranks.
inline constexpr int most_ranks = 65536;

/// A number, and its source, such as "WORLD_SIZE=4": for messages.
struct SourcedNumber {
  int value = 0;
  std::string source;
};

/// Returns the number that a variable or a parameter has.
/// @param refuse  is given the problem unless it is in [least, most], and throws
template <class Refuse>
[[nodiscard]] SourcedNumber number_from(const std::string& name, const std::string& value, int least, int most,
                                        Refuse&& refuse) {
  const auto known = parse_int(value);
  if (!known || *known < least || *known > most)
    refuse("invalid " + name + " '" + value + "': must be a number in [" + std::to_string(least) + ", " +
           std::to_string(most) + "]");
  return {*known, name + "=" + value};
}

/// Reads the environment variables of one launcher, and names them in errors.
class Variables {
 public:
  /// @param backend  the launcher, for messages
  /// @param advice  the end of every message
  explicit Variables(std::string_view backend, std::string_view advice = {}) : backend_(backend), advice_(advice) {}

  [[noreturn]] void refuse(const std::string& problem) const {
    throw ConnectError(problem + std::string(advice_), {.operation = "connect", .backend = backend_});
  }
  /// @throws ConnectError if it is not set
  [[nodiscard]] std::string text(const char* name) const {
    auto value = variable(name);
    if (value.empty()) refuse(std::string(name) + " is not set");
    return value;
  }
  /// @throws ConnectError if it is not set, or is not a number in [least, most]
  [[nodiscard]] SourcedNumber number(const char* name, int least, int most) const {
    return number_from(name, text(name), least, most, [&](const auto& problem) { refuse(problem); });
  }
  [[nodiscard]] std::optional<SourcedNumber> number_if_set(const char* name, int least, int most) const {
    if (!is_set(name)) return std::nullopt;
    return number(name, least, most);
  }
  /// Returns an id of 32 bits.
  /// @throws ConnectError if it is not set, or is not such a number
  [[nodiscard]] std::uint32_t id(const char* name) const {
    const auto value = text(name);
    const auto known = parse_number<std::uint32_t>(value);
    if (!known) refuse("invalid " + std::string(name) + " '" + value + "': must be a number in [0, 4294967295]");
    return *known;
  }
  /// @throws ConnectError unless the rank is below the size
  void check_rank(const SourcedNumber& rank, const SourcedNumber& size) const {
    if (rank.value >= size.value)
      refuse(rank.source + " contradicts " + size.source + ": the rank must be in [0, " + std::to_string(size.value) +
             ")");
  }

 private:
  std::string_view backend_;
  std::string_view advice_;
};

/// Returns whether this process is to join a running job: DISTX_JOIN=1. It then receives its rank and the size.
/// @throws ConnectError if DISTX_JOIN is invalid, or DISTX_RANK or DISTX_SIZE is set as well
[[nodiscard]] inline bool joins_running_job(std::string_view backend) {
  const Variables variables(backend);
  const auto join = variables.number_if_set("DISTX_JOIN", 0, 1);
  if (!join || join->value == 0) return false;
  for (const char* name : {"DISTX_RANK", "DISTX_SIZE"})
    if (is_set(name))
      variables.refuse("DISTX_JOIN=1 contradicts " + std::string(name) + "=" + variable(name) +
                       ": a process that joins receives its rank; unset " + name);
  return true;
}

}  // namespace distx::inline DISTX_ABI::detail
