// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "distx/connect/detail/announced_ranks.hpp"
#include "distx/core/deadline.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A URL that says how the ranks of a program find each other: scheme://authority/path?parameter=value&…
class ConnectUrl {
 public:
  static constexpr const char* from_variable = "DISTX_CONNECT";

  /// @param source  where the URL comes from, for messages, such as "DISTX_CONNECT"
  /// @throws ConnectError if it is malformed
  ConnectUrl(std::string text, std::string source) : text_(std::move(text)), source_(std::move(source)) {
    std::string_view rest = text_;
    const auto scheme_end = rest.find("://");
    if (scheme_end == std::string_view::npos || scheme_end == 0)
      refuse("it is not a URL such as tcp://node1:29500?rank=0&size=4");
    scheme_ = rest.substr(0, scheme_end);
    rest.remove_prefix(scheme_end + 3);
    if (const auto query = rest.find('?'); query != std::string_view::npos) {
      parse_parameters(rest.substr(query + 1));
      rest = rest.substr(0, query);
    }
    const auto path = rest.find('/');
    authority_ = rest.substr(0, path);
    if (path != std::string_view::npos) path_ = rest.substr(path);
  }

  [[nodiscard]] const std::string& scheme() const noexcept { return scheme_; }
  /// Returns the part between `//` and the next `/` or `?`.
  [[nodiscard]] const std::string& authority() const noexcept { return authority_; }
  /// Returns the part from that `/` to `?`.
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Returns "DISTX_CONNECT=tcp://…".
  [[nodiscard]] std::string to_string() const { return source_ + "=" + text_; }
  /// Returns whether there is nothing after the scheme.
  [[nodiscard]] bool is_scheme_alone() const noexcept {
    return authority_.empty() && path_.empty() && parameters_.empty();
  }

  [[noreturn]] void refuse(const std::string& problem) const {
    throw ConnectError("invalid " + source_ + " '" + text_ + "': " + problem, {.operation = "connect"});
  }
  /// @throws ConnectError if a parameter is not one of these
  void allow_parameters(std::initializer_list<std::string_view> names) const {
    std::string all;
    for (const auto& allowed : names) all.append(all.empty() ? "" : ", ").append(allowed);
    for (const auto& [name, value] : parameters_)
      if (std::ranges::find(names, name) == names.end())
        refuse(("unknown parameter '" + name + "'; ").append(scheme_).append(":// has ").append(all));
  }
  [[nodiscard]] std::string parameter(const std::string& name) const {
    const auto found = parameters_.find(name);
    return found == parameters_.end() ? "" : found->second;
  }
  /// Returns a parameter that is a number; null if it is absent.
  /// @throws ConnectError unless it is in [least, most]
  [[nodiscard]] std::optional<SourcedNumber> number(const std::string& name, int least, int most) const {
    if (!parameters_.contains(name)) return std::nullopt;
    auto known = number_from(name, parameter(name), least, most, [&](const auto& problem) { refuse(problem); });
    known.source += " in " + source_;
    return known;
  }
  /// Returns the rank and the size, each of which is either a parameter or a variable.
  /// @throws ConnectError if one is missing or invalid, or both are there and differ; or if another launcher announces
  ///         different ranks to a URL that is a variable
  [[nodiscard]] SourcedRank rank(const char* rank_variable = "DISTX_RANK") const {
    auto size = number_or_variable("size", "DISTX_SIZE", 1, most_ranks);
    auto rank = number_or_variable("rank", rank_variable, 0, most_ranks - 1, rank_announced_for(size.value));
    Variables(scheme_).check_rank(rank, size);
    const bool is_own = !parameter("rank").empty() || is_set("DISTX_RANK");  // else another launcher announces it
    if (source_ == from_variable) check_other_launchers({"file", size, is_own ? std::optional(rank) : std::nullopt});
    return {std::move(rank), std::move(size)};
  }
  /// Returns the parameter `timeout`, or the default deadline.
  [[nodiscard]] Timeout timeout() const {
    const auto seconds = number("timeout", 0, 1 << 30);
    return seconds ? Timeout(std::chrono::seconds(seconds->value)) : default_deadline;
  }
  /// Returns whether this process is to join a running job: DISTX_JOIN=1.
  /// @throws ConnectError if a rank or a size is given as well
  [[nodiscard]] bool joins_running_job() const {
    if (!detail::joins_running_job(scheme_)) return false;
    for (const char* name : {"rank", "size"})
      if (!parameter(name).empty())
        refuse("DISTX_JOIN=1 contradicts " + std::string(name) + "=" + parameter(name) +
               ": a process that joins receives its rank; omit it");
    return true;
  }

 private:
  /// Returns a number that is either a parameter or a variable, or else `otherwise`.
  [[nodiscard]] SourcedNumber number_or_variable(const std::string& name, const char* variable_name, int least,
                                                 int most, const std::optional<SourcedNumber>& otherwise = {}) const {
    const auto own = number(name, least, most);
    const auto other = Variables(scheme_).number_if_set(variable_name, least, most);
    if (own && other && own->value != other->value) refuse(own->source + " contradicts " + other->source);
    if (!own && !other && otherwise) return *otherwise;
    if (!own && !other) refuse("the " + name + " is missing: add " + name + "=…, or set " + variable_name);
    return own ? *own : *other;
  }
  void parse_parameters(std::string_view text) {
    while (!text.empty()) {
      const auto end = text.find('&');
      const auto pair = text.substr(0, end);
      text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
      const auto equals = pair.find('=');
      if (equals == std::string_view::npos || equals == 0)
        refuse("'" + std::string(pair) + "' is not of the form name=value");
      const std::string name(pair.substr(0, equals));
      if (!parameters_.emplace(name, pair.substr(equals + 1)).second) refuse("it has two parameters '" + name + "'");
    }
  }

  std::string text_;
  std::string source_;
  std::string scheme_;
  std::string authority_;
  std::string path_;
  std::map<std::string, std::string> parameters_;
};

}  // namespace distx::inline DISTX_ABI::detail
