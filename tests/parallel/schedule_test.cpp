// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/parallel/pipeline/picture.hpp>
#include <distx/parallel/pipeline/schedules.hpp>

#include <algorithm>
#include <functional>
#include <string>

namespace schedule_test {

namespace {

using distx::pipeline::Action;
using distx::pipeline::Durations;
using distx::pipeline::Schedule;
using distx::pipeline::Shape;
using distx::pipeline::Step;
using distx::pipeline::Steps;

// Schedules are values that the compiler can make.
static_assert(distx::pipeline::gpipe(4, 8).peak_alive(0) == 8);
static_assert(distx::pipeline::one_forward_one_backward(4, 8).peak_alive(1) == 3);
static_assert(distx::pipeline::interleaved(2, 4, 2).steps(0).size() == 16 + 24);
static_assert(distx::pipeline::zero_bubble(2, 4).schedule().splits_backward());

// Powers of two, whose sums are exact, and others than forward = backward.
constexpr Durations costs[] = {{1, 1, 1}, {2, 4, 1}, {4, 2, 2}, {1, 0.5, 0.5}};

void check(const Schedule& schedule, double (*bubble)(const Shape&, const Durations&),
           int (*alive)(const Shape&, int)) {
  const Shape& shape = schedule.shape();
  CAPTURE(shape.ranks);
  CAPTURE(shape.micro_batches);
  CAPTURE(shape.chunks);
  bool bubbles = true, activations = true, counts = true;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    activations = activations && schedule.peak_alive(rank) == alive(shape, rank);
    counts = counts && std::ranges::count(schedule.steps(rank), Action::forward, &Step::action) ==
                           shape.micro_batches * shape.chunks;
  }
  for (const auto& each : costs) {
    const auto timeline = schedule.timeline(each);
    for (int rank = 0; rank < shape.ranks; ++rank) bubbles = bubbles && idle(timeline, rank) == bubble(shape, each);
  }
  CHECK(bubbles);
  CHECK(activations);
  CHECK(counts);
}

double of_one_chunk(const Shape& shape, const Durations& d) {
  return (shape.ranks - 1) * (d.forward + d.backward_input + d.backward_weight);
}

TEST_CASE("schedules: bubble and activations are those of the formula, for 1 to 16 ranks and 1 to 64 micro-batches") {
  for (int ranks = 1; ranks <= 16; ++ranks)
    for (int count = 1; count <= 64; ++count) {
      check(distx::pipeline::gpipe(ranks, count), of_one_chunk,
            [](const Shape& shape, int) { return shape.micro_batches; });
      check(distx::pipeline::one_forward_one_backward(ranks, count), of_one_chunk,
            [](const Shape& shape, int rank) { return std::min(shape.micro_batches, shape.ranks - rank); });
      if (count >= ranks)
        check(
            distx::pipeline::zero_bubble(ranks, count).schedule(),
            [](const Shape& shape, const Durations& d) {
              return (shape.ranks - 1) * (d.forward + d.backward_input - d.backward_weight);
            },
            [](const Shape& shape, int) { return std::min(shape.micro_batches, shape.ranks); });
      else
        CHECK_THROWS_AS((void)distx::pipeline::zero_bubble(ranks, count), distx::InvalidArgument);
      for (int chunks = 1; chunks <= 4; ++chunks)
        if (count % ranks != 0)
          CHECK_THROWS_AS((void)distx::pipeline::interleaved(ranks, count, chunks), distx::InvalidArgument);
        else if (count <= 2 * ranks)
          check(distx::pipeline::interleaved(ranks, count, chunks), of_one_chunk, [](const Shape& shape, int rank) {
            return std::min(shape.micro_batches * shape.chunks,
                            2 * (shape.ranks - 1 - rank) + (shape.chunks - 1) * shape.ranks + 1);
          });
    }
}

std::string words(const std::function<void()>& f) {
  try {
    f();
  } catch (const distx::InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("schedules: numbers that a schedule does not support are refused by name") {
  using namespace distx::pipeline;
  CHECK(contains(words([] { (void)interleaved(4, 6, 2); }),
                 "schedule 'interleaved 1F1B': the number of ranks, 4, must divide the number of micro-batches, 6"));
  CHECK(contains(words([] { (void)zero_bubble(4, 3); }),
                 "schedule 'ZB-H1': the number of micro-batches must not be below that of ranks, 4, and is 3"));
  CHECK(contains(words([] { (void)gpipe(0, 3); }), "give positive numbers"));
  CHECK(contains(words([] { (void)gpipe(-2, 3); }), "give positive numbers"));
  CHECK(contains(words([] { (void)interleaved(-2, 2, 2); }), "give positive numbers"));
  CHECK(contains(words([] { (void)one_forward_one_backward(2, 0); }), "give positive numbers"));
}

/// The steps of 1F1B on two ranks, changed.
std::string changed(const std::function<void(Steps&)>& change, int most_alive = 100) {
  const Schedule valid = distx::pipeline::one_forward_one_backward(2, 3);
  Steps steps{valid.steps(0), valid.steps(1)};
  change(steps);
  return words([&] { (void)Schedule("mine", valid.shape(), std::move(steps), most_alive); });
}
auto find(std::vector<Step>& steps, const Step& step) { return std::find(steps.begin(), steps.end(), step); }

TEST_CASE("schedules: a wrong schedule of each kind is refused with the step that is wrong") {
  CHECK(changed([](Steps&) {}) == "accepted");
  CHECK(contains(changed([](Steps& s) { s.pop_back(); }), "with steps of 1 ranks"));
  CHECK(contains(changed([](Steps& s) { s[0][0].micro_batch = 3; }),
                 "schedule 'mine': step 0, forward of micro-batch 3 of rank 0 is outside"));
  CHECK(contains(changed([](Steps& s) { s[0][0].chunk = 1; }), "is outside"));
  CHECK(contains(changed([](Steps& s) { s[0].insert(s[0].begin() + 1, s[0][0]); }),
                 "step 1, forward of micro-batch 0 of rank 0 is repeated"));
  CHECK(contains(changed([](Steps& s) { s[1].push_back({Action::backward_weight, 2}); }), "is repeated"));
  CHECK(contains(changed([](Steps& s) { s[0].insert(s[0].begin(), Step{Action::receive_input, 0}); }),
                 "step 0, receive input of micro-batch 0 of rank 0 has no peer"));
  CHECK(contains(changed([](Steps& s) { std::swap(s[0][0], s[0][1]); }),
                 "step 0, send output of micro-batch 0 of rank 0 precedes a step that it depends on"));
  CHECK(contains(changed([](Steps& s) { s[1].erase(find(s[1], {Action::receive_input, 1})); }),
                 "forward of micro-batch 1 of rank 1 precedes"));
  CHECK(contains(
      changed([](Steps& s) { std::swap(*find(s[0], {Action::backward, 1}), *find(s[0], {Action::backward, 2})); }),
      "precedes a step that it depends on"));
  CHECK(contains(changed([](Steps& s) {
                   // Rank 0 sends micro-batch 1 before 0.
                   std::swap(s[0][0], s[0][2]);
                   std::swap(s[0][1], s[0][3]);
                 }),
                 "receive input of micro-batch 0 of rank 1 is out of order"));
  CHECK(contains(changed([](Steps&) {}, 1), "step 2, forward of micro-batch 1 of rank 0 keeps more activations"));
  CHECK(contains(changed([](Steps& s) { s[1].erase(find(s[1], {Action::send_gradient, 2})); }),
                 "receive gradient of micro-batch 2 of rank 0 waits for a message that is never sent"));
  CHECK(contains(changed([](Steps& s) {
                   // Rank 0 waits for the gradient of micro-batch 2 before it sends its output.
                   const auto send = find(s[0], {Action::send_output, 2});
                   const Step moved = *send;
                   s[0].erase(send);
                   s[0].insert(find(s[0], {Action::receive_gradient, 2}) + 1, moved);
                 }),
                 "receive gradient of micro-batch 2 of rank 0 waits for a message whose sender waits for this rank"));
  CHECK(contains(changed([](Steps& s) { s[0].erase(find(s[0], {Action::backward, 2})); }),
                 "schedule 'mine': backward of micro-batch 2 of rank 0 is missing"));
  CHECK(contains(changed([](Steps& s) { s[0].pop_back(), s[0].push_back({Action::backward_input, 2}); }),
                 "backward of micro-batch 2 of rank 0 is missing"));
  CHECK(contains(words([] {
                   using enum Action;
                   (void)Schedule("mine", {1, 2},
                                  {{{forward, 0},
                                    {forward, 1},
                                    {backward_input, 1},
                                    {backward_input, 0},
                                    {backward_weight, 0},
                                    {backward_weight, 1}}});
                 }),
                 "step 2, backward input of micro-batch 1 of rank 0 is out of order"));
  // Weight gradients in another order than the micro-batches'.
  CHECK(contains(words([] {
                   using enum Action;
                   (void)Schedule("mine", {1, 2}, {{{forward, 0}, {forward, 1}, {backward, 1}, {backward, 0}}});
                 }),
                 "step 2, backward of micro-batch 1 of rank 0 is out of order"));
}

TEST_CASE("schedules: where weights take longer than inputs, a rank of ZB-H1 waits for more than the formula") {
  CHECK(distx::pipeline::zero_bubble(4, 8).schedule().bubble(0, {1, 1, 1.5}) > 3 * (1 + 1 - 1.5));
}

TEST_CASE("schedules: a timeline without steps has no length, and an empty picture") {
  CHECK(length(distx::pipeline::Timeline(2)) == 0);
  CHECK(picture(distx::pipeline::Timeline(2), 1) == "rank 0 ||\nrank 1 ||\n");
  CHECK(picture(distx::pipeline::gpipe(2, 2).timeline({1, 1, 1}), 1) == "rank 0 |01...aabb|\nrank 1 |.01aabb..|\n");
}

TEST_CASE("schedules: messages that take time delay a pipeline by two messages for each pair of neighbouring ranks") {
  const auto schedule = distx::pipeline::gpipe(4, 8);
  const Durations fast{1, 1, 1}, slow{1, 1, 1, 0.25};
  CHECK(length(schedule.timeline(fast)) == 11 * 3);
  CHECK(length(schedule.timeline(slow)) == 11 * 3 + 2 * 3 * 0.25);
}

}  // namespace

}  // namespace schedule_test
