// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <utility>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Gives MeshParallel and checkpoints access to trainings.
struct TrainingAccess {
  template <class Training, class... Arguments>
  static Training make(Arguments&&... arguments) {
    return Training(std::forward<Arguments>(arguments)...);
  }
  template <class Training>
  static auto& engine(Training& training) {
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
  static typename Training::space::stream stream(const Training& training) noexcept {
    return training.stream_;
  }
  /// Calls `f`; an error revokes all of the training's communicators.
  template <class Training, class F>
  static void guard(Training& training, F&& f) {
    if constexpr (requires { training.mesh_; })
      training.guarded(f);
    else
      f();  // the engine guards its calls
  }
};

}  // namespace distx::inline DISTX_ABI::detail
