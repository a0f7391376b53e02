// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/connect.hpp"

namespace distx::inline DISTX_ABI::detail::file {

/// Joins the ranks that DISTX_FILE, DISTX_RANK and DISTX_SIZE describe.
[[nodiscard]] AnyConnector connect_in_folder();
/// Joins the ranks of a URL: file:///folder?rank=0&size=4.
[[nodiscard]] AnyConnector connect_by_url(const ConnectUrl& url);

}  // namespace distx::inline DISTX_ABI::detail::file
