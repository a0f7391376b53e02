// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/detail/variables.hpp"
#include "distx/connect/file/file_connector.hpp"

namespace distx::inline DISTX_ABI::detail::file {

/// Lets `connect()` join ranks in a folder once this header is included.
inline const Launcher launcher{
    .name = "file",
    .started_by_it = [] { return is_set("DISTX_FILE") || is_set("DISTX_RANK") || is_set("DISTX_SIZE"); },
    .connect = [](int&, char**&) { return connect_in_folder(); },
    .by_name = true,
    .connect_to = connect_by_url,
    .reason = [] { return std::string("DISTX_FILE is set"); },
};

inline const bool launcher_is_registered = register_launcher(launcher);

}  // namespace distx::inline DISTX_ABI::detail::file
