// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <source_location>

#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/parameter_list.hpp"

namespace distx::detail {

/// Gives MeshParallel access to a DataParallel, and checkpoints access to both.
struct TrainingAccess {
  /// Constructs the training of this rank's part of a model.
  template <class Training, class C, class Optimizer>
  static Training make(C& comm, const ParameterList<typename Training::space>& parameters, const Optimizer& optimizer,
                       const DataParallelOptions& options, const std::source_location& location) {
    return Training(comm, parameters, optimizer, options, location, true);
  }
  template <class Training>
  static auto& engine(Training& training) {
    if constexpr (requires { training.mesh_; })
      return *training.training_.engine_;
    else
      return *training.engine_;
  }
  /// Returns the communicator of all ranks of a training, over its mesh if it has one.
  template <class Training>
  static auto& communicator(Training& training) {
    if constexpr (requires { training.mesh_; })
      return training.mesh_.world;
    else
      return training.engine_->communicator();
  }
  /// Returns the stream that orders calls without a stream.
  template <class Training>
  static typename Training::space::stream stream([[maybe_unused]] const Training& training) noexcept {
    if constexpr (requires { training.mesh_; })
      return training.mesh_.stream;
    else
      return {};
  }
  /// Calls `f`; an error revokes all of the training's communicators.
  template <class Training, class F>
  static void guard(Training& training, F&& f) {
    if constexpr (requires { training.mesh_; })
      training.guarded(f);
    else
      f();  // the engine guards its calls
  }
  /// Adds a parameter's unit to a scope of `unshard`.
  template <class Training, class A>
  static void unshard(Training& training, typename Training::scope& scope, const typename Training::After& after,
                      const A& parameter) {
    if constexpr (Training::may_shard_weights)
      if (training.engine_->shards_weights()) training.unshard_one(scope, after, parameter);
  }
};

}  // namespace distx::detail
