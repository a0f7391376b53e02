// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/parallel/detail/engine/step/step_state.hpp>

#include <set>

using distx::detail::StepCall;
using distx::detail::StepFault;
using distx::detail::StepState;

TEST_CASE("a step goes through its phases in order, and each call out of order has its fault") {
  StepState state;
  CHECK(state.fault(StepCall::ready) == StepFault::none);
  CHECK(state.fault(StepCall::step) == StepFault::none);
  CHECK(state.fault(StepCall::update_weights) == StepFault::gradients_not_reduced);
  CHECK(state.fault(StepCall::gather_weights) == StepFault::gradients_not_reduced);
  CHECK(state.fault(StepCall::owned) == StepFault::gradients_not_reduced);
  CHECK(state.fault(StepCall::between_steps) == StepFault::none);
  CHECK(state.fault(StepCall::between_steps, true) == StepFault::step_in_progress);
  state.reduced();
  for (const auto call :
       {StepCall::gradient, StepCall::ready, StepCall::micro_batch, StepCall::step, StepCall::reduce_gradients})
    CHECK(state.fault(call) == StepFault::gradients_reduced);
  for (const auto call : {StepCall::update_weights, StepCall::gather_weights, StepCall::owned, StepCall::unshard})
    CHECK(state.fault(call) == StepFault::none);
  CHECK(state.fault(StepCall::between_steps) == StepFault::step_in_progress);
  state.updated();
  CHECK(state.fault(StepCall::update_weights) == StepFault::weights_updated);
  CHECK(state.fault(StepCall::gather_weights) == StepFault::none);
  state.finish();
  CHECK(state.fault(StepCall::ready) == StepFault::none);
  state.release();
  for (const auto call : {StepCall::gradient, StepCall::ready, StepCall::unshard, StepCall::micro_batch, StepCall::step,
                          StepCall::reduce_gradients, StepCall::update_weights, StepCall::gather_weights,
                          StepCall::owned, StepCall::between_steps, StepCall::load})
    CHECK(state.fault(call) == StepFault::released);
}

TEST_CASE("an incomplete state accepts nothing but a load") {
  StepState state;
  state.set_incomplete(true);
  for (const auto call : {StepCall::gradient, StepCall::ready, StepCall::unshard, StepCall::micro_batch, StepCall::step,
                          StepCall::reduce_gradients, StepCall::between_steps})
    CHECK(state.fault(call) == StepFault::incomplete_load);
  CHECK(state.fault(StepCall::load) == StepFault::none);
  state.set_incomplete(false);
  CHECK(state.fault(StepCall::step) == StepFault::none);
}

TEST_CASE("a step ends after its last micro-batch, and not before") {
  StepState state;
  CHECK(state.expects(0, 2));
  CHECK_FALSE(state.expects(1, 2));
  CHECK_FALSE(state.begin_micro_batch(false, 2));
  CHECK(state.expects(1, 2));
  CHECK_FALSE(state.expects(0, 2));
  CHECK_FALSE(state.expects(1, 3));
  CHECK_FALSE(state.in_last_micro_batch());
  CHECK(state.fault(StepCall::step) == StepFault::no_last_micro_batch);
  CHECK(state.fault(StepCall::reduce_gradients) == StepFault::no_last_micro_batch);
  CHECK(state.fault(StepCall::micro_batch) == StepFault::none);
  CHECK(state.begin_micro_batch(true, 2));
  CHECK(state.fault(StepCall::step) == StepFault::none);
  CHECK(state.fault(StepCall::micro_batch) == StepFault::after_last_micro_batch);
  state.skip();
  state.finish();
  CHECK_FALSE(state.skipped());
  CHECK(state.fault(StepCall::micro_batch) == StepFault::none);
  CHECK(state.expects(0, 3));
}

TEST_CASE("gradients are refused while weights are evaluated or swapped") {
  StepState state;
  ++*state.evaluations();
  CHECK(state.fault(StepCall::ready) == StepFault::no_gradients_in_scope);
  --*state.evaluations();
  CHECK(state.fault(StepCall::ready) == StepFault::none);
  const auto token = state.swap_token();
  CHECK(state.swapped_in());
  CHECK(state.fault(StepCall::gradient) == StepFault::no_gradients_in_scope);
}

TEST_CASE("every fault has a different message") {
  std::set<std::string_view> messages(distx::detail::step_fault_messages.begin(),
                                      distx::detail::step_fault_messages.end());
  CHECK(messages.size() == distx::detail::step_fault_messages.size());
  CHECK(static_cast<std::size_t>(StepFault::ready_too_seldom) + 1 == distx::detail::step_fault_messages.size());
  CHECK(distx::detail::message_of(StepFault::ready_again, "b").starts_with("'b' is already ready"));
}
