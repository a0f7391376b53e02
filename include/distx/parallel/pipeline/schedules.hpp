// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/pipeline/schedule.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// Appends a step of computation, with the messages before and after it.
constexpr void add_with_messages(std::vector<pipeline::Step>& steps, const pipeline::Shape& shape, int rank,
                                 const pipeline::Step& step) {
  using pipeline::Action;
  const int stage = step.chunk * shape.ranks + rank;
  const bool first = stage == 0, last = stage + 1 == shape.stages();
  const auto add = [&](Action action) { steps.push_back({action, step.micro_batch, step.chunk}); };
  const bool forward = step.action == Action::forward, weight = step.action == Action::backward_weight;
  if (forward && !first) add(Action::receive_input);
  if (!forward && !weight && !last) add(Action::receive_gradient);
  add(step.action);
  if (forward && !last) add(Action::send_output);
  if (!forward && !weight && !first) add(Action::send_gradient);
}

/// Makes each rank's `count` forward and backward passes: `warm_up(rank)` forward passes first, then one of each in
/// turn, then the other backward passes.
/// @param place  place(i, backward) returns micro-batch and chunk of the i-th pass
/// @param backward  backward(rank, i, add) adds the steps of the i-th backward pass
template <class WarmUp, class Place, class Backward>
constexpr pipeline::Steps alternating(const pipeline::Shape& shape, int count, WarmUp warm_up, Place place,
                                      Backward backward) {
  pipeline::Steps steps(static_cast<std::size_t>(std::max(0, shape.ranks)));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const auto add = [&](pipeline::Action action, int i, bool back) {
      const auto [micro_batch, chunk] = place(i, back);
      add_with_messages(steps[static_cast<std::size_t>(rank)], shape, rank, {action, micro_batch, chunk});
    };
    const int first = std::min(count, warm_up(rank));
    for (int i = 0; i < count + first; ++i) {
      if (i < count) add(pipeline::Action::forward, i, false);
      if (i >= first) backward(rank, i - first, add);
    }
  }
  return steps;
}
constexpr auto whole_backward = [](int, int i, const auto& add) { add(pipeline::Action::backward, i, true); };
constexpr auto one_chunk = [](int i, bool) { return std::pair(i, 0); };

[[noreturn]] inline void reject_schedule(std::string_view name, const std::string& requirement) {
  throw InvalidArgument("schedule '" + std::string(name) + "': " + requirement, {.operation = "Schedule"});
}

}  // namespace detail

namespace pipeline {

/// GPipe: all forward passes, then all backward passes. A rank keeps the activations of all micro-batches.
/// @throws InvalidArgument unless all numbers are positive
[[nodiscard]] constexpr Schedule gpipe(int ranks, int micro_batches, int chunks = 1) {
  const Shape shape{ranks, micro_batches, chunks};
  const int count = micro_batches * chunks;
  return {"GPipe", shape,
          detail::alternating(
              shape, count, [=](int) { return count; },
              [=](int i, bool backward) {
                const int chunk = i / micro_batches;
                return std::pair(i % micro_batches, backward ? chunks - 1 - chunk : chunk);
              },
              detail::whole_backward)};
}

/// 1F1B: each rank begins with the backward passes as early as it can. Rank r keeps the activations of at most
/// ranks - r micro-batches.
/// @throws InvalidArgument unless both numbers are positive
[[nodiscard]] constexpr Schedule one_forward_one_backward(int ranks, int micro_batches) {
  const Shape shape{ranks, micro_batches};
  return {
      "1F1B", shape,
      detail::alternating(
          shape, micro_batches, [=](int rank) { return ranks - 1 - rank; }, detail::one_chunk, detail::whole_backward)};
}

/// Interleaved 1F1B (Narayanan et al., 2021, arXiv 2104.04473): each rank has several chunks of the model, so that it
/// waits for a chunk's time where 1F1B waits for a whole rank's. It sends `chunks` times the messages of 1F1B.
/// @throws InvalidArgument unless all numbers are positive and `ranks` divides `micro_batches`
[[nodiscard]] constexpr Schedule interleaved(int ranks, int micro_batches, int chunks) {
  const Shape shape{ranks, micro_batches, chunks};
  if (ranks > 0 && micro_batches % ranks != 0)
    detail::reject_schedule("interleaved 1F1B", "the number of ranks, " + std::to_string(ranks) +
                                                    ", must divide the number of micro-batches, " +
                                                    std::to_string(micro_batches));
  return {"interleaved 1F1B", shape,
          detail::alternating(
              shape, micro_batches * chunks, [=](int rank) { return 2 * (ranks - 1 - rank) + (chunks - 1) * ranks; },
              [=](int i, bool backward) {
                const int group = i / (ranks * chunks), in_group = i % (ranks * chunks), chunk = in_group / ranks;
                return std::pair(group * ranks + in_group % ranks, backward ? chunks - 1 - chunk : chunk);
              },
              detail::whole_backward)};
}

/// ZB-H1 (Qi et al., 2023, arXiv 2401.10241): rank r computes the weights' gradients r micro-batches later than those
/// of the inputs, in the time that 1F1B waits. Each rank keeps the activations of at most
/// `ranks` micro-batches, or the operands that are left of them.
/// @throws InvalidArgument unless 1 <= ranks <= micro_batches
[[nodiscard]] constexpr SplitSchedule zero_bubble(int ranks, int micro_batches) {
  const Shape shape{ranks, micro_batches};
  if (micro_batches < ranks)
    detail::reject_schedule("ZB-H1", "the number of micro-batches must not be below that of ranks, " +
                                         std::to_string(ranks) + ", and is " + std::to_string(micro_batches));
  return SplitSchedule({"ZB-H1", shape,
                        detail::alternating(
                            shape, micro_batches, [=](int rank) { return ranks - 1 - rank; }, detail::one_chunk,
                            [=](int rank, int i, const auto& add) {
                              add(Action::backward_input, i, true);
                              if (i >= rank) add(Action::backward_weight, i - rank, true);
                              if (i + 1 == micro_batches)
                                for (int late = std::max(0, micro_batches - rank); late < micro_batches; ++late)
                                  add(Action::backward_weight, late, true);
                            })});
}

}  // namespace pipeline

}  // namespace distx::inline DISTX_ABI
