// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/engine_owner.hpp"
#include "distx/parallel/detail/engine/exponential_average_calls.hpp"
#include "distx/parallel/detail/engine/training_engine_calls.hpp"

namespace distx::detail {

template <MemorySpace Space>
EngineOwner<Space>::EngineOwner() = default;
template <MemorySpace Space>
EngineOwner<Space>::EngineOwner(AnyCommunicator<Space> comm, std::vector<ParameterEntry<Space>> entries,
                                const AnyOptimizer<Space>& optimizer, const TrainingPolicies& policies,
                                const DataParallelOptions& options, const here& location)
    : engine_(std::make_unique<Engine>(std::move(comm), std::move(entries), optimizer, policies, options, location)) {}
template <MemorySpace Space>
EngineOwner<Space>::EngineOwner(EngineOwner&&) noexcept = default;
template <MemorySpace Space>
EngineOwner<Space>& EngineOwner<Space>::operator=(EngineOwner&&) noexcept = default;
template <MemorySpace Space>
EngineOwner<Space>::~EngineOwner() = default;

template <MemorySpace Space>
TrainingEngine<Space>& EngineOwner<Space>::operator*() const {
  if (engine_ == nullptr)
    throw InvalidState(
        "this training was moved from, or recover has failed; call recover again on the ranks that are left");
  return *engine_;
}

template <MemorySpace Space>
void EngineOwner<Space>::replicate(std::vector<ParameterEntry<Space>> entries,
                                   std::function<AnyOptimizer<Space>()> optimizer, const DataParallelOptions& options,
                                   const here& location) {
  remake_ = [entries = std::move(entries), optimizer = std::move(optimizer), options = DataParallelOptions(options),
             policies = engine_->policies()](AnyCommunicator<Space>& ranks, const here& line) mutable {
    options.broadcast_from = 0;
    forget_shards(entries);
    return std::make_unique<Engine>(ranks.share(), entries, optimizer(), policies, options, line);
  };
  (void)engine_->replicate(kept_, location);
}
template <MemorySpace Space>
std::uint64_t EngineOwner<Space>::recover(AnyCommunicator<Space> ranks, const here& location) {
  if (engine_ != nullptr)
    if (auto replicas = engine_->take_replicas()) kept_.push_back(std::move(replicas));
  engine_.reset();
  engine_ = remake_(ranks, location);
  try {
    const auto steps = engine_->replicate(kept_, location);
    kept_.clear();
    return steps;
  } catch (const CheckpointError&) {
    engine_.reset();
    throw;
  }
}

template <MemorySpace Space>
auto EngineOwner<Space>::on_device() const -> Guard {
  return (**this).on_device();
}
template <MemorySpace Space>
void EngineOwner<Space>::check_gradient() const {
  (**this).check_gradient();
}
template <MemorySpace Space>
void EngineOwner<Space>::request_gradient(const void* identity, stream after) const {
  (**this).request_gradient(identity, after);
}
template <MemorySpace Space>
void EngineOwner<Space>::ready(const void* identity, stream after, const here& location) const {
  (**this).ready(identity, after, location);
}
template <MemorySpace Space>
bool EngineOwner<Space>::shards_weights() const {
  return (**this).shards_weights();
}
template <MemorySpace Space>
void EngineOwner<Space>::unshard(Unsharded<Space>& scope, const void* identity, stream after,
                                 const here& location) const {
  (**this).unshard(scope, identity, after, location);
}
template <MemorySpace Space>
Evaluation<Space> EngineOwner<Space>::evaluate() const {
  return (**this).evaluate();
}
template <MemorySpace Space>
void EngineOwner<Space>::begin_micro_batch(bool last, stream after, const here& location) const {
  (**this).begin_micro_batch(last, after, location);
}
template <MemorySpace Space>
int EngineOwner<Space>::join(bool has_batch, stream after, const here& location) const {
  return (**this).join(has_batch, after, location);
}
template <MemorySpace Space>
void EngineOwner<Space>::step(const StepOptions& options, stream after, const here& location) const {
  (**this).step(options, after, location);
}
template <MemorySpace Space>
void EngineOwner<Space>::capture(const std::function<void()>& f, stream after, const here& location) const {
  (**this).captured_step().record(**this, f, after, location);
}
template <MemorySpace Space>
void EngineOwner<Space>::replay(const StepOptions& options, stream after, const here& location) const {
  (**this).captured_step().replay(**this, options, after, location);
}
template <MemorySpace Space>
void EngineOwner<Space>::reduce(stream after, const here& location) const {
  (**this).reduce(after, location);
}
template <MemorySpace Space>
void EngineOwner<Space>::update(const StepOptions& options, stream after, const here& location) const {
  (**this).update(options, after, location);
}
template <MemorySpace Space>
void EngineOwner<Space>::gather(stream after, const here& location) const {
  (**this).gather(after, location);
}
template <MemorySpace Space>
std::vector<Segment<Space>> EngineOwner<Space>::owned(const here& location) const {
  return (**this).owned(location);
}
template <MemorySpace Space>
void EngineOwner<Space>::for_each_full_weight(
    const std::function<void(const std::string&, Span<const AnyElement, Space>)>& f, stream after,
    const here& location) const {
  (**this).for_each_full_weight(f, after, location);
}
template <MemorySpace Space>
void EngineOwner<Space>::release(stream after, const here& location) const {
  (**this).release(after, location);
}
template <MemorySpace Space>
TrainingState<Space> EngineOwner<Space>::state(const here& location) const {
  return (**this).state(location);
}
template <MemorySpace Space>
const std::source_location& EngineOwner<Space>::location() const {
  return (**this).location();
}
template <MemorySpace Space>
double EngineOwner<Space>::gradient_norm() const {
  return (**this).gradient_norm();
}
template <MemorySpace Space>
double EngineOwner<Space>::loss_scale() const {
  return (**this).scaler().scale();
}
template <MemorySpace Space>
std::uint64_t EngineOwner<Space>::skipped_steps() const {
  return (**this).scaler().skipped();
}
template <MemorySpace Space>
observe::MemoryLedger EngineOwner<Space>::memory() const {
  return (**this).memory();
}
template <MemorySpace Space>
std::size_t EngineOwner<Space>::bucket_count() const {
  return (**this).bucket_count();
}

}  // namespace distx::detail
