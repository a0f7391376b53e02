// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connect.hpp"
#include "distx/connect/file.hpp"

namespace distx::file {

namespace detail {

[[nodiscard]] inline std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

[[noreturn]] inline void refuse(const std::string& what) {
  throw ConnectError(what +
                         ": set DISTX_FILE to the folder in which the ranks meet, DISTX_RANK to the rank, from 0 "
                         "on, and DISTX_SIZE to the number of ranks",
                     {.operation = "connect", .backend = "file"});
}

[[nodiscard]] inline int number(const char* name) {
  const auto value = distx::detail::environment_number(name);
  if (!value)
    refuse(std::string(name) + (variable(name).empty() ? " is not set" : " is '" + variable(name) + "', no number"));
  return *value;
}

[[nodiscard]] inline FileConnector connect() {
  const auto folder = variable("DISTX_FILE");
  if (folder.empty()) refuse("DISTX_FILE is not set");
  const int rank = number("DISTX_RANK");
  return FileConnector(folder, rank, number("DISTX_SIZE"));
}

}  // namespace detail

/// What `connect()` knows of ranks that meet in a folder once this header is included.
inline const Launcher launcher{
    .name = "file",
    .started_by_it =
        [] {
          for (const char* name : {"DISTX_FILE", "DISTX_RANK", "DISTX_SIZE"})
            if (!detail::variable(name).empty()) return true;
          return false;
        },
    .connect = [](int&, char**&) -> AnyConnector { return detail::connect(); },
    .by_name = true,
};

inline const bool launcher_is_registered = register_launcher(launcher);

}  // namespace distx::file
