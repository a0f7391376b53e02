// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/detail/variables.hpp"
#include "distx/connect/file/file_connector.hpp"

namespace distx::inline DISTX_ABI::detail::file {

/// Lets `connect()` join ranks in a folder once this header is included.
inline const Launcher launcher{
    .name = "file",
    .started_by_it =
        [] {
          for (const char* name : {"DISTX_FILE", "DISTX_RANK", "DISTX_SIZE"})
            if (!variable(name).empty()) return true;
          return false;
        },
    .connect = [](int&, char**&) { return connect_in_folder(); },
    .by_name = true,
    .connect_to = connect_by_url,
    .reason = [] { return std::string("DISTX_FILE is set"); },
};

inline const bool launcher_is_registered = register_launcher(launcher);

}  // namespace distx::inline DISTX_ABI::detail::file
