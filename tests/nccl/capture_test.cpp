// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A training step in a CUDA graph: replays have the bits of steps that are not captured.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "distx/distx.hpp"
#include "distx/optim/lamb.hpp"
#include "nccl/gpu_ranks.hpp"
#include "nccl/ranks.hpp"

namespace {

using distx::bfloat16;
using distx::Cuda;
using distx::CudaStreamRef;
using distx::NcclCommunicator;
using distx::Span;

constexpr std::array<std::size_t, 6> sizes{300, 7, 64, 1000, 1, 129};

/// A model whose gradients are its weights plus an input, which each step overwrites.
template <class T, class... Policies>
class Model {
 public:
  template <class C, class Optimizer = distx::AdamW>
  Model(C& comm, const distx::DataParallelOptions& options,
        const Optimizer& optimizer = distx::AdamW{.weight_decay = 0.125})
      : rank_(comm.rank()), parameters_(make()), training(comm, parameters_, optimizer, options) {
    for (const auto size : sizes) inputs_.emplace_back(size);
  }

  /// Makes one step: `backward`, and then `step`.
  void step(double rate) {
    backward();
    training.step({.learning_rate = rate}, stream);
  }
  void backward() {
    for (std::size_t p = 0; p < (requests_first ? sizes.size() : 0); ++p)
      static_cast<void>(training.gradient(parameters_[p], stream));
    for (std::size_t p = sizes.size(); p-- > 0;) {
      const CudaStreamRef on = p % 2 == 1 ? CudaStreamRef(second) : CudaStreamRef(stream);
      if (p % 2 == 1) distx::detail::order<Cuda>(stream, second);
      const auto gradient = training.gradient(parameters_[p], on);
      distx::add(on, gradient, Span<const T, Cuda>(training.value(parameters_[p])));
      distx::add(on, gradient, Span<const T, Cuda>(inputs_[p]));
      training.ready_after(on, parameters_[p]);
    }
  }
  /// Sets the inputs of step `number`, in the order of the steps.
  void load(int number, float first = 1) {
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      std::vector<T> host(sizes[p]);
      for (std::size_t i = 0; i < host.size(); ++i)
        host[i] =
            T(first * static_cast<float>((i * 7 + p * 3 + static_cast<std::size_t>(number * 5 + rank_)) % 17) / 8);
      distx::copy(stream, inputs_[p].span(), Span<const T>(host));
      stream.ref().synchronize();
    }
  }
  void capture() {
    training.capture([&] { step(0); }, stream);
  }
  std::vector<T> weights() {
    std::vector<T> all;
    training.for_each_full_weight(
        [&](const std::string&, Span<const distx::AnyElement, Cuda> values) {
          const std::size_t begin = all.size();
          all.resize(begin + values.size());
          distx::copy(stream, Span<T>(all).subspan(begin, values.size()),
                      Span<const T, Cuda>(static_cast<const T*>(values.data()), values.size()));
          stream.synchronize();
        },
        stream);
    return all;
  }

  const distx::CudaStream stream, second;
  bool requests_first = false;  ///< all gradients, before one is ready

 private:
  static std::vector<distx::Parameter<T, Cuda>> make() {
    std::vector<distx::Parameter<T, Cuda>> made;
    for (std::size_t p = 0; p < sizes.size(); ++p)
      made.emplace_back("p" + std::to_string(p), sizes[p], [p](Span<T, Cuda> values) {
        distx::fill(CudaStreamRef(), values, T(static_cast<float>(p) + 0.5f));
      });
    return made;
  }

  int rank_;
  std::vector<distx::Parameter<T, Cuda>> parameters_;
  std::vector<distx::Buffer<T, Cuda>> inputs_;

 public:
  distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<Cuda>, Policies...> training;
};

constexpr int steps = 7;
double rate_of(int number) { return 0.01 / (number + 1); }

/// Trains with steps 1, 2, 3, 5 and 6 replayed where `captures`, and 0 and 4 not; returns weights and norms.
template <class T, class... Policies, class C>
std::pair<std::vector<T>, std::vector<double>> train(C& comm, const distx::DataParallelOptions& options, bool captures,
                                                     bool requests_first) {
  Model<T, Policies...> model(comm, options);
  model.requests_first = requests_first;
  std::vector<double> norms;
  for (int number = 0; number < steps; ++number) {
    model.load(number);
    if (captures && number == 1) model.capture();
    if (captures && number != 0 && number != 4)
      model.training.replay({.learning_rate = rate_of(number)}, model.stream);
    else
      model.step(rate_of(number));
    norms.push_back(model.training.gradient_norm());
  }
  auto weights = model.weights();
  return {std::move(weights), std::move(norms)};
}

template <class T, class... Policies, class C>
void compare(C& comm, distx::DataParallelOptions options, bool requests_first = false) {
  options.bucket_bytes = requests_first ? 400 : 1200;
  for (const double clip_norm : {std::numeric_limits<double>::infinity(), 0.5}) {
    CAPTURE(clip_norm);
    options.clip_norm = clip_norm;
    const auto plain = train<T, Policies...>(comm, options, false, requests_first);
    const auto captured = train<T, Policies...>(comm, options, true, requests_first);
    CHECK(plain.first.size() == captured.first.size());
    CHECK(std::memcmp(plain.first.data(), captured.first.data(), plain.first.size() * sizeof(T)) == 0);
    CHECK(plain.second == captured.second);
    CHECK((plain.second.back() > 0) == options.clips());
  }
}

/// Whether the call throws an InvalidState whose message has this word.
template <class F>
bool refused(F&& f, const std::string& word) {
  return test::message_thrown<distx::InvalidState>(std::forward<F>(f)).find(word) != std::string::npos;
}

}  // namespace

TEST_CASE("captured steps that are replayed have the bits of steps that are not captured") {
  for (const int ranks : {1, 2, 3})
    gpu_ranks::on_gpus(ranks, [&](NcclCommunicator& comm) {
      for (const int stage : {0, 1, 2}) {
        if ((ranks == 1 && stage == 1) || (ranks == 3 && stage != 1)) continue;
        CAPTURE(ranks);
        CAPTURE(stage);
        compare<float>(comm, {.overlap = ranks != 3, .stage = stage});
      }
    });
}
TEST_CASE(
    "captured steps with 16-bit weights and masters, or gradients sent in 16 bits, have the bits of steps that are not "
    "captured") {
  gpu_ranks::on_gpus(2, [&](NcclCommunicator& comm) {
    compare<bfloat16>(comm, {.stage = 2});
    compare<bfloat16, distx::Precision<bfloat16>>(comm, {.stage = 1, .offload = true});
    compare<bfloat16, distx::Precision<float>>(comm, {.stage = 2});
    compare<float, distx::Compress<bfloat16>>(comm, {.stage = 1});
  });
}
TEST_CASE("captured steps with more gradients in memory than the pool has have the same bits") {
  gpu_ranks::on_gpus(2, [&](NcclCommunicator& comm) { compare<float>(comm, {.stage = 2}, true); });
}
TEST_CASE("captured steps of Hybrid groups have the bits of steps that are not captured") {
  gpu_ranks::on_gpus(
      4, [&](NcclCommunicator& comm) { compare<float, distx::Hybrid>(comm, {.stage = 2, .group_ranks = 2}); });
}

TEST_CASE("a replayed step whose gradients are not finite leaves the weights unchanged and is reported on every rank") {
  gpu_ranks::on_gpus(2, [&](NcclCommunicator& comm) {
    Model<float> model(comm, {.stage = 2, .clip_norm = 1});
    model.load(0);
    model.step(0.01);
    model.capture();
    model.load(1, comm.rank() == 1 ? std::numeric_limits<float>::infinity() : 1.0F);
    model.training.replay({.learning_rate = 0.01}, model.stream);
    CHECK_THROWS_AS(model.training.replay({.learning_rate = 0.01}, model.stream), distx::NonFiniteError);
  });
}

TEST_CASE("ranks that replay a step which another rank does not replay throw at the deadline" *
          nccl_test::needs_gpus(2)) {
  distx::spawn(distx::threads(2, std::chrono::minutes(1)), [](distx::ThreadConnector& connector) {
    distx::cuda::pick_device(connector);
    NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(2)});
    {
      Model<float> model(comm, {.stage = 2});
      model.load(0);
      model.step(0.01);
      model.capture();
      if (comm.rank() == 0) {
        model.training.replay({.learning_rate = 0.01}, model.stream);
        model.stream.synchronize();  // ends, since the watchdog aborts what the graph waits for
        CHECK_THROWS_AS(model.training.replay({.learning_rate = 0.01}, model.stream), distx::TimeoutError);
      }
      connector.barrier();
    }
  });
}

TEST_CASE("capture refuses steps in which the host waits, and other calls than those of one step") {
  gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
    Model<float> model(comm, {.stage = 0});
    CHECK(refused([&] { model.training.replay({.learning_rate = 1}, model.stream); }, "no step is captured"));
  });
  const auto refuses = [&](const distx::DataParallelOptions& options, const std::string& word) {
    gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
      Model<float> model(comm, options);
      model.step(0.01);
      CHECK(refused([&] { model.capture(); }, word));
    });
  };
  refuses({.allow_unused = true, .stage = 2}, ".allow_unused");
  refuses({.stage = 2, .guard_every = 2}, ".guard_every");
  gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
    Model<float> model(comm, {.stage = 0}, distx::LAMB{});
    model.step(0.01);
    CHECK(refused([&] { model.capture(); }, "LAMB, Muon"));
  });

  const auto wrong = [&](auto&& f, const std::string& word) {
    gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
      Model<float> model(comm, {.stage = 2});
      model.step(0.01);
      CHECK(refused([&] { f(model); }, word));
      CHECK(refused([&] { model.training.replay({.learning_rate = 1}, model.stream); }, "step"));
    });
  };
  wrong([](auto& model) { model.training.capture([] {}, model.stream); }, "0 steps");
  wrong([](auto& model) { model.training.capture([&] { model.step(0), model.step(0); }, model.stream); }, "2 steps");
  wrong(
      [](auto& model) {
        model.training.capture([&] { static_cast<void>(model.training.announce_batch(true)); }, model.stream);
      },
      "being captured");
  wrong(
      [](auto& model) {
        model.backward();
        model.capture();
      },
      "a step is in progress");
  gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
    Model<float> model(comm, {.stage = 2});
    CHECK(refused([&] { model.capture(); }, "no step has been made"));
  });
  gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
    Model<float> model(comm, {.stage = 2});
    model.step(0.01);
    const auto on_default = [&] { model.training.capture([&] { model.step(0); }); };
    CHECK(test::message_thrown<distx::InvalidArgument>(on_default).find("default stream") != std::string::npos);
    model.step(0.01);
  });
}

TEST_CASE("an asynchronous collective on a stream that is being captured runs whenever the graph is launched") {
  for (const int ranks : {1, 2})
    gpu_ranks::on_gpus(ranks, [&](NcclCommunicator& comm) {
      const auto values = nccl_test::on_gpu(std::vector<float>(100, 1.0F));
      const distx::CudaStream stream;
      std::optional<distx::detail::CapturedWork<Cuda>> graph;
      graph.emplace(stream, [&] {
        for (int turn = 0; turn < 2; ++turn) distx::start_all_reduce(comm, values, distx::sum, stream).wait(stream);
      });
      CHECK(nccl_test::on_host(values)[99] == 1);  // recorded, not done
      for (int turn = 0; turn < 2; ++turn) graph->launch(stream);
      distx::start_all_reduce(comm, values, distx::sum, stream).wait(stream);
      stream.synchronize();
      CHECK(nccl_test::on_host(values)[99] == static_cast<float>(std::pow(ranks, 5)));
      graph.reset();  // before the communicator, which NCCL would not end
    });
}

TEST_CASE("messages, reductions on the host and waits of the host are refused while a stream is captured") {
  const auto refuses = [](auto&& f, const std::string& word) {
    gpu_ranks::on_gpus(2, [&](NcclCommunicator& comm) {
      const auto values = nccl_test::on_gpu(std::vector<float>(100, 1.0F));
      const distx::CudaStream stream;
      std::string words;
      try {
        distx::detail::CapturedWork<Cuda>(
            stream, [&] { words = test::message_thrown<distx::InvalidState>([&] { f(comm, values, stream); }); });
      } catch (const distx::BackendError&) {  // a stream that does not join the captured one again
      }
      CHECK_MESSAGE(words.find(word) != std::string::npos, words);
    });
  };
  refuses([](auto& comm, auto& values,
             auto& stream) { auto pending = distx::start_send(comm, values, 1 - comm.rank(), 0, stream); },
          "no messages");
  refuses(
      [](auto& comm, auto& values, auto& stream) {
        const auto smaller = [](float a, float b) { return a < b ? a : b; };
        auto pending = distx::start_all_reduce(comm, values, smaller, stream);
      },
      "reduced on the host");
  refuses(
      [](auto& comm, auto& values, auto& stream) {
        auto pending = distx::start_all_reduce(comm, values, distx::sum, stream);
        pending.wait();
      },
      "pass wait a stream");
}
