// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
// The templates of checkpoint/ in the compiled form. DISTX_COMPILED is `extern` where they are declared, and nothing
// where they are defined.
#include "distx/checkpoint/load_weights.hpp"
#include "distx/checkpoint/save_async.hpp"

namespace distx::inline DISTX_ABI::checkpoint {

DISTX_COMPILED template class PendingSave<Host>;

}  // namespace distx::inline DISTX_ABI::checkpoint

namespace distx::inline DISTX_ABI::checkpoint::detail {

DISTX_COMPILED template std::filesystem::path save<Host>(const std::filesystem::path&, const SavedTraining<Host>&,
                                                         const SaveOptions&, const std::source_location&);
DISTX_COMPILED template Loaded load<Host>(const std::filesystem::path&, const SavedTraining<Host>&,
                                          const std::source_location&);
DISTX_COMPILED template PendingSave<Host> save_async<Host>(const std::filesystem::path&, const SavedTraining<Host>&,
                                                           const SaveOptions&, const std::source_location&);
DISTX_COMPILED template void load_weights<Host>(const std::filesystem::path&, const SavedTraining<Host>&,
                                                const WeightOptions&, const std::source_location&);

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
