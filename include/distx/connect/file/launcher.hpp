// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connect.hpp"
#include "distx/connect/file/file_connector.hpp"

namespace distx::detail::file {

[[nodiscard]] inline std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

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
  const int rank = number("DISTX_RANK");
  return FileConnector(folder, rank, number("DISTX_SIZE"));
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
};

inline const bool launcher_is_registered = register_launcher(launcher);

}  // namespace distx::detail::file
