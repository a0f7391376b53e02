// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <torch/optim/optimizer.h>

#include <ranges>

#include "distx/comm/movement.hpp"
#include "distx/torch/detail/module_parameters.hpp"

namespace distx_torch::inline DISTX_ABI {

/// Trains an unchanged torch::nn::Module on all ranks, as PyTorch's DistributedDataParallel does, with the stages of
/// ZeRO.
///
/// Backward passes declare gradients ready, so a loop only calls `step` in place of the optimizer's. All calls of
/// distx::DataParallel are available, and its contracts hold: one thread at a time uses the training, hooks of a
/// backward pass included. Rank `.broadcast_from` gives all others its weights and buffers when the training is
/// constructed.
///
/// Weights and gradients are in memory of the training; the module's tensors are over it, remain the same objects, and
/// keep it alive. With On<Cuda> a module of the host is moved to the current GPU, and the calls below are in the order
/// of LibTorch's current stream; inherited calls run on CUDA's legacy default stream unless they are passed another.
/// `.grad` is not defined but from `reduce_gradients` to `gather_weights` at stage 0. At stage 3 the weights of a
/// Sharded layer are whole while its forward and backward pass run, those outside of Sharded layers always but in the
/// calls that change them. The module must not gain, lose, convert or move parameters while the training exists; each
/// tensor has at most one post-accumulate hook, which is the training's. If construction throws, the module's weights
/// are lost.
/// @tparam Policies  as of distx::DataParallel; On<Cuda> needs <distx/torch_cuda.hpp>
/// @code
/// distx_torch::DataParallel<distx::ZeRO<1>> training(*module, comm, distx::AdamW{});
/// loss(module->forward(x), y).backward();
/// training.step({.learning_rate = 1e-3});
/// @endcode
template <class... Policies>
class DataParallel : private detail::ModuleParameters<distx::detail::space_of_policies<Policies...>>,
                     private detail::TrainingOfModule,
                     public distx::DataParallel<Policies...> {
  using Training = distx::DataParallel<Policies...>;
  using Module = detail::ModuleParameters<typename Training::space>;

 public:
  using typename Training::here;
  using typename Training::scope;

  /// Collective over `comm`, which must outlive the training. Modules have the same parameters and buffers on every
  /// rank.
  /// @param optimizer  distx's, or distx::NoOptimizer to update weights by `step(optimizer)`, or `owned`
  /// @throws distx::InvalidArgument for a parameter that cannot be trained, with its name; else as distx::DataParallel
  template <distx::Communicator C, class Optimizer>
  DataParallel(torch::nn::Module& module, C& comm, const Optimizer& optimizer,
               const distx::DataParallelOptions& options = {}, const ModuleOptions& module_options = {},
               const here& location = here::current())
      : Module(module, module_options),
        Training(comm, Module::list(), optimizer, options, location),
        comm_(comm.share()),
        root_(options.broadcast_from),
        broadcasts_buffers_(module_options.broadcast_buffers && !Module::buffers().empty()),
        stage_(options.stage.value_or(Training::stage)) {
    Module::attach(this);
  }
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  ~DataParallel() { Module::attach(nullptr); }

  /// Ends the step as distx::DataParallel's, and broadcasts buffers. Collective.
  void step(const distx::StepOptions& options, const here& location = here::current()) {
    Module::begin_pass();
    Training::step(options, on_stream(), location);
    broadcast_buffers(location);
  }
  /// Ends the step by an optimizer of LibTorch, which has the module's parameters and sees averaged gradients. At stage
  /// 0. Collective.
  /// @throws distx::InvalidState at another stage of ZeRO<Dynamic>
  void step(torch::optim::Optimizer& optimizer, const here& location = here::current()) {
    static_assert(Training::stage == 0 || Training::stage == distx::Dynamic,
                  "distx_torch: an optimizer of LibTorch has whole weights and gradients, which stage 0 keeps; use "
                  "ZeRO<0>, or an optimizer of distx");
    if (stage_ != 0)
      throw distx::InvalidState(
          "an optimizer of LibTorch has whole weights and gradients, and this training is of stage " +
              std::to_string(stage_) + "; set .stage = 0, or use an optimizer of distx",
          {"step", comm_.backend(), comm_.rank(), comm_.size(), location});
    reduce_gradients(location);
    optimizer.step();
    gather_weights(location);
  }
  /// As distx::DataParallel's; at stage 0 averaged gradients are then the tensors' `.grad`.
  void reduce_gradients(const here& location = here::current()) {
    Module::begin_pass();
    Training::reduce_gradients(on_stream(), location);
    if (stage_ == 0) Module::show_gradients(this->owned(location));
  }
  void gather_weights(const here& location = here::current()) {
    Module::show_gradients({});
    Training::gather_weights(on_stream(), location);
    broadcast_buffers(location);
  }
  [[nodiscard]] auto micro_batch(const distx::MicroBatchIndex& which, const here& location = here::current()) {
    Module::begin_pass();
    return Training::micro_batch(which, on_stream(), location);
  }
  [[nodiscard]] int announce_batch(bool has_batch, const here& location = here::current()) {
    Module::begin_pass();
    return Training::announce_batch(has_batch, on_stream(), location);
  }
  using Training::unshard;
  /// Makes all weights whole until the returned scope ends, such as for torch::save. At stage 3 collective.
  [[nodiscard]] scope unshard(const here& location = here::current()) {
    return Training::unshard_after({on_stream(), location}, Module::all());
  }
  /// Continues on the ranks of `comm`, as distx::DataParallel's recover; buffers are broadcast there. Collective.
  template <class C>
  std::uint64_t recover(C& comm, const here& location = here::current()) {
    Module::begin_pass();
    Module::show_gradients({});
    const auto step = Training::recover(comm, location);
    comm_ = distx::AnyCommunicator<typename Training::space>(comm.share());
    root_ = 0;
    return step;
  }
  /// Ends the training; the module keeps whole weights. Collective, between steps.
  void release(const here& location = here::current()) {
    Module::begin_pass();
    Training::release(on_stream(), location);
    Module::attach(nullptr);
  }

 private:
  /// Returns LibTorch's stream of this thread: in a hook, that of the gradient.
  [[nodiscard]] static auto on_stream() { return detail::Place<typename Training::space>::stream(); }
  void accept_gradient(std::size_t parameter, const at::Tensor& gradient) override {
    const auto after = on_stream();
    this->add_gradient(Module::parameter(parameter), span_of<typename Training::space>(gradient.contiguous()), after);
    this->ready_after(after, Module::parameter(parameter));
  }
  [[nodiscard]] detail::Whole unshard_layer(const std::vector<std::size_t>& parameters) override {
    const auto parameter = [this](std::size_t number) -> decltype(auto) { return Module::parameter(number); };
    return std::make_shared<scope>(Training::unshard_after(on_stream(), std::views::transform(parameters, parameter)));
  }
  void broadcast_buffers(const here& location) {
    if (!broadcasts_buffers_ || comm_.size() == 1) return;
    if constexpr (std::same_as<typename Training::space, distx::Host>)
      distx::broadcast(comm_, Module::buffers(), root_, location);
    else
      distx::start_broadcast(comm_, Module::buffers(), root_, on_stream(), location).wait(on_stream());
  }

  distx::AnyCommunicator<typename Training::space> comm_;
  int root_;
  bool broadcasts_buffers_;
  int stage_;
};

}  // namespace distx_torch::inline DISTX_ABI

namespace distx::inline DISTX_ABI::detail {

template <class... Policies>
inline constexpr bool is_training<distx_torch::DataParallel<Policies...>> = true;

}  // namespace distx::inline DISTX_ABI::detail
