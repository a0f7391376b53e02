// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Defines what checkpoint.hpp declares for trainings on GPUs in programs that are compiled with
// -DDISTX_COMPILED=extern.
#undef DISTX_COMPILED
#define DISTX_COMPILED extern
#include <distx/checkpoint/detail/load_weights_definitions.hpp>
#include <distx/checkpoint/detail/training_definitions.hpp>
#include <distx/comm.hpp>
#include <distx/cuda.hpp>

namespace distx::checkpoint {

template class PendingSave<Cuda>;

namespace detail {

template std::filesystem::path save<Cuda>(const std::filesystem::path&, const SavedTraining<Cuda>&, const SaveOptions&,
                                          const std::source_location&);
template Loaded load<Cuda>(const std::filesystem::path&, const SavedTraining<Cuda>&, const std::source_location&);
template PendingSave<Cuda> save_async<Cuda>(const std::filesystem::path&, const SavedTraining<Cuda>&,
                                            const SaveOptions&, const std::source_location&);
template void load_weights<Cuda>(const std::filesystem::path&, const SavedTraining<Cuda>&, const WeightOptions&,
                                 const std::source_location&);

}  // namespace detail

}  // namespace distx::checkpoint
