// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connect.hpp"
#include "distx/connect/detail/connect_url.hpp"
#include "distx/connect/file/file_connector.hpp"

namespace distx::detail::file {

[[noreturn]] inline void refuse(const std::string& problem) {
  throw ConnectError(problem +
                         ": set DISTX_FILE to a folder that all ranks share, DISTX_RANK to the rank (from 0), and "
                         "DISTX_SIZE to the number of ranks",
                     {.operation = "connect", .backend = "file"});
}

[[nodiscard]] inline int number(const char* name) {
  const auto value = environment_number(name);
  if (!value)
    refuse(variable(name).empty() ? std::string(name) + " is not set"
                                  : std::string("invalid ") + name + " '" + variable(name) + "'");
  return *value;
}

[[nodiscard]] inline FileConnector connect_in_folder() {
  const auto folder = variable("DISTX_FILE");
  if (folder.empty()) refuse("DISTX_FILE is not set");
  if (joins_running_job("file")) return FileConnector::join(folder);
  const auto size = variable("DISTX_RANK").empty() ? environment_number("DISTX_SIZE") : std::nullopt;
  const auto announced = size ? rank_announced_for(*size) : std::nullopt;
  const int rank = announced ? announced->value : number("DISTX_RANK");
  return FileConnector(folder, rank, number("DISTX_SIZE"));
}

/// Joins the ranks of a URL: file:///folder?rank=0&size=4.
[[nodiscard]] inline FileConnector connect_by_url(const ConnectUrl& url) {
  url.allow_parameters({"rank", "size", "timeout"});
  if (!url.authority().empty())
    url.refuse("a folder's URL has three slashes, as file:///" + url.authority() + url.path());
  if (url.path().empty()) url.refuse("the folder is missing");
  FileConnectorOptions options;
  if (const auto seconds = url.number("timeout", 0, 1 << 30)) options.deadline = std::chrono::seconds(seconds->value);
  if (url.joins_running_job()) return FileConnector::join(url.path(), options);
  const auto size = url.number_or_variable("size", "DISTX_SIZE", 1, control::most_ranks);
  const auto rank =
      url.number_or_variable("rank", "DISTX_RANK", 0, control::most_ranks - 1, rank_announced_for(size.value));
  Variables("file").check_rank(rank, size);
  return FileConnector(url.path(), rank.value, size.value, options);
}

/// Lets `connect()` join ranks in a folder once this header is included.
inline const Launcher launcher{
    .name = "file",
    .started_by_it =
        [] {
          for (const char* name : {"DISTX_FILE", "DISTX_RANK", "DISTX_SIZE"})
            if (!variable(name).empty()) return true;
          return false;
        },
    .connect = [](int&, char**&) -> AnyConnector { return connect_in_folder(); },
    .by_name = true,
    .connect_to = [](const ConnectUrl& url) -> AnyConnector { return connect_by_url(url); },
    .reason =
        [] {
          return variable("DISTX_FILE").empty() ? std::string("DISTX_RANK or DISTX_SIZE is set")
                                                : std::string("DISTX_FILE is set");
        },
};

inline const bool launcher_is_registered = register_launcher(launcher);

}  // namespace distx::detail::file
