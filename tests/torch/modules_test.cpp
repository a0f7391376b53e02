// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Modules of LibTorch that distx trains, on threads as ranks.
#include <ATen/DLConvertor.h>
#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>
#undef CHECK  // LibTorch's logging has one as well
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>

#include <distx/dlpack.hpp>
#include <distx/threads.hpp>
#include <distx/torch.hpp>

#include "models.hpp"

namespace {

using namespace torch_models;
template <class... Policies>
using Training = distx_torch::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...>;

constexpr int stages[] = {0, 1, 2, 3};

constexpr std::chrono::seconds one_minute{60};

/// Calls f(comm), or f(connector), on ranks that are threads.
template <class F>
void on_ranks(int ranks, F&& f) {
  at::set_num_threads(1);
  distx::spawn(distx::threads(ranks, one_minute), [&](distx::ThreadConnector& connector) {
    if constexpr (std::invocable<F&, distx::ThreadConnector&>) {
      f(connector);
    } else {
      distx::ThreadCommunicator comm(connector, one_minute);
      f(comm);
    }
  });
}

std::vector<double> train(Training<>& training, auto& module, distx::ThreadCommunicator& comm, int steps,
                          at::ScalarType type = at::kFloat) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const auto batch = Batch(step, type).part(comm.rank(), comm.size());
    const auto loss = loss_of(module.forward(batch.x), batch.y);
    loss.backward();
    training.step({.learning_rate = 0.05});
    losses.push_back(loss.template item<double>());
  }
  return losses;
}

/// Counts the bytes of LibTorch's tensors while it exists.
class Allocations {
 public:
  struct Bytes {
    std::int64_t now, peak;
  };
  Allocations() { c10::SetCPUAllocator(&counting_, 255); }
  ~Allocations() { c10::SetCPUAllocator(counting_.below, 255); }  // tensors that are left have their own deleter
  /// Returns the bytes now, and makes them the peak. Collective.
  Bytes begin(distx::ThreadCommunicator& comm) {
    distx::barrier(comm);
    if (comm.rank() == 0) counting_.peak = counting_.now.load();
    return end(comm);
  }
  Bytes end(distx::ThreadCommunicator& comm) {
    distx::barrier(comm);
    const Bytes bytes{counting_.now, counting_.peak};
    distx::barrier(comm);
    return bytes;
  }

 private:
  struct Counting final : c10::Allocator {
    c10::DataPtr allocate(std::size_t bytes) override {
      const std::int64_t held = now += static_cast<std::int64_t>(bytes);
      for (auto seen = peak.load(); seen < held && !peak.compare_exchange_weak(seen, held);) {
      }
      auto* const block = new Block{this, below->allocate(bytes), static_cast<std::int64_t>(bytes)};
      return {block->memory.get(), block, &release, at::kCPU};
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
    static void release(void* context) {
      auto* const block = static_cast<Block*>(context);
      block->of->now -= block->bytes;
      delete block;
    }
    struct Block {
      Counting* of;
      c10::DataPtr memory;
      std::int64_t bytes;
    };
    c10::Allocator* below = c10::GetCPUAllocator();
    std::atomic<std::int64_t> now{0}, peak{0};
  };
  static Counting& counted() {
    static auto* const all = new Counting;  // outlives tensors of static storage
    return *all;
  }
  Counting& counting_ = counted();
};

template <class E, class F>
void check_throws(F&& f, const std::string& words) {
  try {
    f();
  } catch (const E& error) {
    const std::string message = error.what();
    INFO(message);
    CHECK(message.find(words) != std::string::npos);
    return;
  }
  FAIL_CHECK("nothing was thrown that says: " << words);
}

}  // namespace

TEST_CASE("a module trains to the same bits at every stage, mapped and gathered") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    std::vector<double> first;
    std::mutex lock;
    for (const int stage : stages)
      for (const bool mapped : {true, false})
        on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
          const auto module = made<Net>(1 + comm.rank());  // other weights on other ranks: rank 0's count
          Training<> training(*module, comm, distx::AdamW{}, {.stage = stage, .map_weights = mapped});
          const auto losses = train(training, *module, comm, 5);
          const auto mean = module->norm->running_mean.sum().item<double>();
          auto means = std::vector{mean};
          distx::broadcast(comm, means, 0);
          CHECK(means[0] == mean);  // rank 0's statistics are everyone's
          if (comm.rank() > 0) return;
          const std::lock_guard hold(lock);
          CAPTURE(stage);
          if (first.empty()) first = losses;
          CHECK(losses == first);
        });
  }
}

TEST_CASE("losses on several ranks are those of one process, by distx's optimizer and by LibTorch's") {
  const auto same = made<Plain>(3);
  same->to(at::kDouble);
  const auto alone = train_alone(*same, 8, at::kDouble);
  for (const int ranks : {1, 2, 4})
    for (const int stage : stages)
      on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        CAPTURE(stage);
        const auto check = [&](const std::vector<double>& losses) {
          for (std::size_t i = 0; i < losses.size(); ++i) {
            std::vector<double> mean{losses[i]};
            distx::all_reduce(comm, mean, distx::average);
            CHECK(std::abs(mean[0] - alone[i]) <= 1e-12 * alone[i]);
          }
        };
        const auto module = made<Plain>(3);
        module->to(at::kDouble);
        {
          Training<> training(*module, comm, distx::SGD{.momentum = 0.9}, {.stage = stage});
          check(train(training, *module, comm, 8, at::kDouble));
        }
        if (stage > 0) return;
        const auto again = made<Plain>(3);
        again->to(at::kDouble);
        torch::optim::SGD optimizer(again->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
        Training<> training(*again, comm, distx::NoOptimizer{}, {.stage = stage});
        std::vector<double> losses;
        for (int step = 0; step < 8; ++step) {
          const auto batch = Batch(step, at::kDouble).part(comm.rank(), comm.size());
          const auto loss = loss_of(again->forward(batch.x), batch.y);
          optimizer.zero_grad();
          loss.backward();
          training.step(optimizer);
          losses.push_back(loss.item<double>());
        }
        check(losses);
      });
}

TEST_CASE("a module keeps its weights after the training, at stage 3 after release, and trains on without it") {
  for (const int stage : stages)
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(stage);
      const auto module = made<Plain>(5);
      {
        Training<> training(*module, comm, distx::SGD{}, {.stage = stage});
        train(training, *module, comm, 2);
        if (stage == 3) training.release();
      }
      const auto before = module->parameters()[0].sum().item<double>();
      train_alone(*module, 2, at::kFloat);
      CHECK(module->parameters()[0].sum().item<double>() != before);
      Training<> again(*module, comm, distx::SGD{}, {.stage = stage});  // the same module once more
      train(again, *module, comm, 2);
    });
}

TEST_CASE("a sharded weight is an error of LibTorch's outside of its layer, and whole in the scope of unshard") {
  for (const bool mapped : {true, false})
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      const auto module = made<Plain>(5);
      const auto sum = module->parameters()[0].sum().item<double>();
      Training<> training(*module, comm, distx::SGD{}, {.stage = 3, .map_weights = mapped});
      const auto weight = module->parameters()[0];
      CHECK(weight.size(0) == 32);
      const std::string words = "'a.weight' is held in shards; use it in its Sharded layer, or in the scope of";
      check_throws<c10::Error>([&] { static_cast<void>(weight.sum().item<double>()); }, words);
      check_throws<c10::Error>([&] { static_cast<void>(weight.t().matmul(torch::ones(32))); }, words);
      check_throws<c10::Error>([&] { static_cast<void>(weight.data_ptr<float>()); }, words);
      check_throws<c10::Error>(
          [&] {
            std::ostringstream file;
            torch::save(module, file);
          },
          words);
      const at::Tensor view = weight.view({-1}), copy = weight;
      {
        const auto whole = training.unshard();
        CHECK(weight.sum().item<double>() == sum);
        CHECK(view.sum().item<double>() == sum);
        std::ostringstream file;
        torch::save(module, file);
        const auto read = made<Plain>(6);
        std::istringstream again(file.str());
        auto target = read;
        torch::load(target, again);
        CHECK(read->parameters()[0].sum().item<double>() == sum);
      }
      check_throws<c10::Error>([&] { static_cast<void>(copy[0][0].item<float>()); }, words);
      train(training, *module, comm, 1);
    });
}

TEST_CASE("micro-batches add up to the batch") {
  for (const int stage : stages)
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(stage);
      const auto run = [&](auto& training, Plain& module, int count) {
        std::vector<double> sums;
        for (int step = 0; step < 3; ++step) {
          const auto batch = Batch(step, at::kDouble).part(comm.rank(), comm.size());
          for (int i = 0; i < count; ++i) {
            const auto scope = training.micro_batch({static_cast<std::size_t>(i), static_cast<std::size_t>(count)});
            const auto part = batch.part(i, count);
            (loss_of(module.forward(part.x), part.y) / count).backward();
          }
          training.step({.learning_rate = 0.1});
          const auto whole = training.unshard();
          sums.push_back(module.parameters()[0].abs().sum().template item<double>());
        }
        return sums;
      };
      const auto both = [&](auto policy) {
        std::vector<std::vector<double>> all;
        for (const int count : {1, 3}) {
          const auto module = made<Plain>(5);
          module->to(at::kDouble);
          Training<decltype(policy)> training(*module, comm, distx::AdamW{}, {.stage = stage});
          all.push_back(run(training, *module, count));
        }
        for (std::size_t i = 0; i < 3; ++i) CHECK(all[0][i] == doctest::Approx(all[1][i]).epsilon(1e-13));
      };
      both(distx::Accumulate<distx::Sharded>{});
      if (stage < 2) both(distx::Accumulate<distx::Local>{});
    });
}

TEST_CASE("a second backward pass in a step is an error that says what to do") {
  for (const int stage : stages)
    on_ranks(1, [&](distx::ThreadCommunicator& comm) {
      const auto module = made<Plain>(5);
      Training<> training(*module, comm, distx::SGD{}, {.stage = stage});
      const Batch batch(0);
      loss_of(module->forward(batch.x), batch.y).backward();
      check_throws<distx::InvalidState>(
          [&] { loss_of(module->forward(batch.x), batch.y).backward(); },
          "has a second gradient in this step; call step between two backward passes, or begin each with micro_batch");
    });
}

TEST_CASE("frozen and unused layers") {
  struct Odd : nn::Module {
    Odd() {
      frozen = register_module("frozen", Sharded<nn::Linear>(8, 8));
      rare = register_module("rare", nn::Linear(8, 8));
      never = register_module("never", nn::Linear(3, 3));
      out = register_module("out", Sharded<nn::Linear>(8, 3));
      for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    }
    at::Tensor forward(at::Tensor x, bool use) {
      x = torch::tanh(frozen->forward(x));
      return out->forward(use ? torch::tanh(rare->forward(x)) : x);
    }
    Sharded<nn::Linear> frozen{nullptr}, out{nullptr};
    nn::Linear rare{nullptr}, never{nullptr};
  };
  std::vector<double> first;
  std::mutex lock;
  for (const int stage : stages)
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      const auto module = made<Odd>(5);
      Training<> training(*module, comm, distx::AdamW{}, {.allow_unused = true, .stage = stage});
      std::vector<double> losses;
      for (int step = 0; step < 4; ++step) {
        const auto batch = Batch(step).part(comm.rank(), comm.size());
        const auto loss = loss_of(module->forward(batch.x, comm.rank() == 0 && step % 2 == 0), batch.y);
        loss.backward();
        training.step({.learning_rate = 0.05});
        losses.push_back(loss.item<double>());
      }
      if (comm.rank() > 0) return;
      const std::lock_guard hold(lock);
      CAPTURE(stage);
      if (first.empty()) first = losses;
      CHECK(losses == first);
    });
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    const auto module = made<Odd>(5);
    Training<> training(*module, comm, distx::AdamW{}, {.stage = 1});
    const Batch batch(0);
    loss_of(module->forward(batch.x, true), batch.y).backward();
    check_throws<distx::InvalidState>([&] { training.step({.learning_rate = 0.1}); },
                                      "'never.weight' has no gradient in this step");
  });
}

TEST_CASE("bfloat16 weights with float32 masters, and clipping: one result at every stage") {
  std::vector<double> first;
  std::mutex lock;
  for (const int stage : stages)
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      const auto module = made<Plain>(5);
      module->to(at::kBFloat16);
      Training<distx::Precision<distx::bfloat16>> training(*module, comm, distx::AdamW{},
                                                           {.stage = stage, .clip_norm = 0.5});
      std::vector<double> losses;
      for (int step = 0; step < 5; ++step) {
        const auto batch = Batch(step, at::kBFloat16).part(comm.rank(), comm.size());
        const auto loss = loss_of(module->forward(batch.x).to(at::kFloat), batch.y);
        loss.backward();
        training.step({.learning_rate = 0.01});
        losses.push_back(loss.item<double>());
      }
      if (comm.rank() > 0) return;
      const std::lock_guard hold(lock);
      CAPTURE(stage);
      if (first.empty()) first = losses;
      CHECK(losses == first);
    });
}

TEST_CASE("memory follows the formula of the stages, and a deferred module is never whole") {
  // 16 layers of 64 x 64 without biases, float32, AdamW, 2 ranks. Ranks are threads: LibTorch's bytes are those of
  // both.
  constexpr std::int64_t layer = 64 * 64 * 4, weights = 16 * layer;
  Allocations allocations;
  for (const bool deferred : {false, true})
    for (const int stage : stages)
      on_ranks(2, [&](distx::ThreadCommunicator& comm) {
        CAPTURE(stage);
        CAPTURE(deferred);
        const auto options = nn::LinearOptions(64, 64).bias(false);
        distx::barrier(comm);
        const auto before = allocations.begin(comm);
        const auto module = std::make_shared<nn::SequentialImpl>();
        for (int i = 0; i < 16; ++i)
          module->push_back(deferred ? Sharded<nn::Linear>(distx_torch::deferred, options)
                                     : Sharded<nn::Linear>(options));
        const auto made = allocations.end(comm);
        Training<> training(*module, comm, distx::AdamW{}, {.bucket_bytes = 0, .stage = stage});
        const auto after = allocations.end(comm);
        // With random states of 5 KiB and other small tensors; while its values are copied, one layer is there twice.
        constexpr std::int64_t small = 16 * 6 * 1024;
        CHECK(made.now - before.now >= 2 * (deferred ? 0 : weights));
        CHECK(made.now - before.now <= 2 * (deferred ? 0 : weights) + 2 * small);
        CHECK(after.now - before.now <= 2 * small);
        CHECK(after.peak - before.now <= 2 * (deferred ? 2 * layer : weights) + 2 * small);
        const auto memory = training.memory();
        CHECK(memory.weights.held == weights / (stage == 3 ? 2 : 1));
        CHECK(memory.gradients.held == weights / (stage >= 2 ? 2 : 1));
        CHECK(memory.optimizer.held == 2 * weights / (stage >= 1 ? 2 : 1));
        distx::barrier(comm);
      });
}

TEST_CASE("a deferred layer begins with the values of one that is not, in the type that the module was converted to") {
  const auto sums = [&](int stage, at::ScalarType type, auto&&... tag) {
    double sum = 0;
    on_ranks(1, [&](distx::ThreadCommunicator& comm) {
      torch::manual_seed(4);
      nn::Sequential module(nn::Linear(8, 16), Sharded<nn::Linear>(tag..., 16, 16),
                            Sharded<nn::Conv2d>(tag..., 3, 4, 3));
      if (type != at::kFloat) module->to(at::kCPU, type);
      if (sizeof...(tag) > 0)
        check_throws<c10::Error>([&] { static_cast<void>(module->forward(torch::ones({1, 8}, type))); },
                                 "of a deferred layer has no values before a DataParallel of its module is made");
      Training<> training(*module, comm, distx::SGD{}, {.stage = stage});
      const auto whole = training.unshard();
      for (const auto& parameter : module->parameters()) {
        CHECK((parameter.scalar_type() == type));
        sum += (parameter.to(at::kDouble) * 3.7).sin().sum().template item<double>();
      }
    });
    return sum;
  };
  for (const int stage : stages)
    for (const auto type : {at::kFloat, at::kBFloat16})
      CHECK(sums(stage, type) == sums(stage, type, distx_torch::deferred));
}

TEST_CASE("a deferred layer is made once: another training continues from its trained values") {
  struct Net2 : nn::Module {
    Sharded<nn::Linear> a = register_module("a", Sharded<nn::Linear>(distx_torch::deferred, 8, 8));
    Sharded<Tied> b = register_module("b", Sharded<Tied>((*a)->weight));
    at::Tensor forward(const at::Tensor& x) { return b->forward(torch::tanh(a->forward(x))); }
  };
  for (const int stage : stages)
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(stage);
      const auto module = made<Net2>(5);
      const auto sum = [&](auto& training) {
        const auto whole = training.unshard();
        return (*module->a)->weight.sin().sum().template item<double>();
      };
      double trained = 0;
      {
        Training<> training(*module, comm, distx::SGD{}, {.stage = stage});
        CHECK((*module->a).weights()->remade == nullptr);
        const double first = sum(training);
        train(training, *module, comm, 2);
        trained = sum(training);
        CHECK(trained != first);
        training.release();
      }
      Training<> again(*module, comm, distx::SGD{}, {.stage = stage});
      CHECK(sum(again) == trained);
    });
  on_ranks(1, [](distx::ThreadCommunicator& comm) {  // the module itself is such a layer
    Sharded<nn::Linear> module(distx_torch::deferred, 4, 2);
    Training<> training(*module, comm, distx::SGD{}, {.stage = 3});
    CHECK(training.state().arrays[0].name == "weight");
    const auto whole = training.unshard();
    CHECK((*module)->weight.abs().sum().item<double>() > 0);
  });
}

TEST_CASE("options_of gives each parameter its options by name") {
  on_ranks(1, [](distx::ThreadCommunicator& comm) {
    const auto module = made<Plain>(5);
    const auto frozen_by_rate = [](const std::string& name, const at::Tensor&) {
      return distx::ParameterOptions{.group = {.learning_rate_scale = name == "a.bias" ? 0.0 : 1.0}};
    };
    Training<> training(*module, comm, distx::SGD{}, {.stage = 1}, {.options_of = frozen_by_rate});
    const at::Tensor bias = (*module->a)->bias.detach().clone(), weight = (*module->a)->weight.detach().clone();
    train(training, *module, comm, 1);
    CHECK((*module->a)->bias.equal(bias));
    CHECK_FALSE((*module->a)->weight.equal(weight));
  });
}

TEST_CASE("the state has the module's names and shapes") {
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    struct Images : nn::Module {
      Images() {
        conv = register_module("conv", Sharded<nn::Conv2d>(nn::Conv2dOptions(3, 8, 5)));
        norm = register_module("norm", nn::BatchNorm2d(8));
      }
      Sharded<nn::Conv2d> conv{nullptr};
      nn::BatchNorm2d norm{nullptr};
    };
    const auto module = made<Images>(5);
    Training<> training(*module, comm, distx::SGD{}, {.stage = 3});
    std::map<std::string, std::vector<std::size_t>> shapes;
    for (const auto& array : training.state().arrays) shapes[array.name] = array.shape;
    const std::vector<std::size_t> kernels{8, 3, 5, 5};
    CHECK(shapes["conv.weight"] == kernels);
    CHECK(shapes["optim.state.conv.weight.momentum_buffer"] == kernels);
    CHECK(shapes["norm.running_mean"] == std::vector<std::size_t>{8});
    CHECK(shapes.count("norm.num_batches_tracked") == 1);
  });
}

TEST_CASE("parameters that cannot be trained are refused by name") {
  const auto refused = [](const std::string& words, const at::Tensor& weight) {
    on_ranks(1, [&](distx::ThreadCommunicator& comm) {
      const auto module = std::make_shared<TiedImpl>(weight);
      check_throws<distx::InvalidArgument>([&] { Training<> training(*module, comm, distx::SGD{}, {.stage = 1}); },
                                           words);
      CHECK(module->weight.numel() == 16);
      CHECK(module->weight.abs().sum().item<double>() == 16);  // its values are still there
    });
  };
  refused("'weight' is not contiguous; convert or move the module before its training is made",
          torch::ones({2, 8}).t());
  refused("'weight' shares its storage with another tensor", torch::ones({5, 4}).narrow(0, 0, 4));
  refused("distx has no element type ComplexFloat", torch::ones({4, 4}, at::kComplexFloat));
  on_ranks(1, [](distx::ThreadCommunicator& comm) {
    const auto module = std::make_shared<nn::EmbeddingImpl>(nn::EmbeddingOptions(10, 4).sparse(true));
    Training<> training(*module, comm, distx::SGD{}, {.stage = 1});
    check_throws<distx::InvalidArgument>([&] { module->forward(torch::arange(3)).sum().backward(); },
                                         "the gradient of 'weight' is sparse");
  });
}

TEST_CASE("collectives take a tensor's memory, and tensors are made over distx's") {
  on_ranks(2, [](distx::ThreadCommunicator& comm) {
    auto tensor = torch::full({2, 3}, comm.rank() + 1, at::kBFloat16);
    distx::all_reduce(comm, distx_torch::span_of<distx::bfloat16>(tensor), distx::sum);
    CHECK(tensor.to(at::kFloat).equal(torch::full({2, 3}, 3.0f)));
    CHECK_THROWS_AS(static_cast<void>(distx_torch::span_of(tensor.t())), distx::InvalidArgument);
    check_throws<distx::InvalidArgument>([&] { static_cast<void>(distx_torch::span_of<float>(tensor)); },
                                         "the tensor has elements of BFloat16, not of float32");
  });
  auto numbers = std::make_shared<std::vector<float>>(6, 2.0f);
  const std::weak_ptr<std::vector<float>> alive = numbers;
  auto tensor = distx_torch::tensor_over(distx::Span<float>(*numbers), at::IntArrayRef({3, 2}), numbers);
  CHECK(tensor.data_ptr() == numbers->data());
  numbers.reset();
  CHECK(tensor.sum().item<float>() == 12);
  tensor.reset();
  CHECK(alive.expired());
}

TEST_CASE("DLPack passes tensors of LibTorch in and out in their own memory, by the structs of its header") {
  const at::Tensor x = torch::arange(6, torch::kFloat).view({2, 3});
  const auto imported = distx::dlpack::from_dlpack<float>(at::toDLPackVersioned(x));
  CHECK(imported.span().data() == x.data_ptr());
  const at::Tensor back = at::fromDLPackVersioned(
      distx::dlpack::to_dlpack<DLManagedTensorVersioned>(imported.span(), imported.shape(), imported.owner())
          .release());
  CHECK(back.data_ptr() == x.data_ptr());
  CHECK(torch::equal(back, x));
}

TEST_CASE("an exception of the backward pass reaches the caller with its type, and ends the step on all ranks") {
  for (const int stage : {0, 3})
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      const auto module = made<Plain>(5);
      Training<> training(*module, comm, distx::SGD{}, {.stage = stage});
      struct Broken {};
      const Batch batch(0);
      const auto loss = loss_of(module->forward(batch.x), batch.y);
      if (comm.rank() == 0) {
        (*module->a)->weight.register_hook([](const at::Tensor&) { throw Broken(); });
        CHECK_THROWS_AS(loss.backward(), Broken);
        comm.revoke("rank 0 gives up");
      } else {
        CHECK_THROWS_AS((loss.backward(), training.step({.learning_rate = 1})), distx::RevokedError);
      }
    });
}

TEST_CASE("a recomputed layer gives the same bits, with dropout and Sharded weights, and runs forward twice") {
  static std::atomic<int> passes;
  struct BlockImpl : nn::Module {
    BlockImpl() { linear = register_module("linear", nn::Linear(16, 16)); }
    at::Tensor forward(const at::Tensor& x) {
      ++passes;
      return x + torch::dropout(torch::gelu(linear->forward(x)), 0.25, is_training());
    }
    nn::Linear linear{nullptr};
  };
  struct Block : nn::ModuleHolder<BlockImpl> {
    using nn::ModuleHolder<BlockImpl>::ModuleHolder;
  };
  const auto run = [&](int stage, auto layer) {
    using Layer = decltype(layer);
    std::vector<double> losses;
    passes = 0;
    on_ranks(1, [&](distx::ThreadCommunicator& comm) {  // one: LibTorch's random numbers are those of all threads
      torch::manual_seed(3);
      nn::Sequential module(nn::Linear(8, 16), Layer(), Layer(), Layer(), nn::Linear(16, 3));
      Training<> training(*module, comm, distx::AdamW{}, {.stage = stage});
      CHECK(training.state().arrays[6].name == "1.linear.weight");
      for (int step = 0; step < 3; ++step) {
        const Batch batch(step);
        const auto loss = loss_of(module->forward(batch.x), batch.y);
        loss.backward();
        training.step({.learning_rate = 0.05});
        losses.push_back(loss.item<double>());
      }
      const at::NoGradGuard no_grad;
      module->eval();
      losses.push_back(module->forward(Batch(9).x).sum().item<double>());
    });
    return losses;
  };
  for (const int stage : stages) {
    CAPTURE(stage);
    const auto expected = run(stage, Block());
    CHECK(passes == 3 * 3 + 3);
    CHECK(run(stage, distx_torch::Recomputed<Block>()) == expected);
    CHECK(passes == 2 * 3 * 3 + 3);
    CHECK(run(stage, distx_torch::Recomputed<Sharded<Block>>()) == expected);
    CHECK(run(stage, Sharded<Block>()) == expected);
  }
}

TEST_CASE("ranks without a batch take part, and training continues after a rank is lost: one result at every stage") {
  std::vector<double> first;
  std::mutex lock;
  for (const int stage : stages) {
    struct Gone {};
    const auto run = [&] {
      on_ranks(3, [&](distx::ThreadConnector& connector) {
        distx::ThreadCommunicator comm(connector, one_minute);
        const auto module = made<Net>(5);
        Training<distx::Replicate> training(*module, comm, distx::AdamW{}, {.stage = stage});
        std::vector<double> losses;
        bool lost = false;
        for (std::uint64_t step = 0; step < 5;) try {
            if (lost) {
              connector = connector.shrink();
              comm = distx::ThreadCommunicator(connector, one_minute);
              step = training.recover(comm);
              lost = false;
              CHECK(step == 3);
            }
            const auto batch = Batch(static_cast<int>(step)).part(comm.rank(), comm.size());
            const bool has_batch = step != 1 || comm.rank() != 1;
            CHECK(training.announce_batch(has_batch) == comm.size() - (step == 1 ? 1 : 0));
            if (has_batch) {
              const auto loss = loss_of(module->forward(batch.x), batch.y);
              if (comm.size() == 3 && comm.rank() == 2 && step == 3) throw Gone();
              loss.backward();
              losses.push_back(loss.item<double>());
            }
            training.step({.learning_rate = 0.05});
            ++step;
          } catch (const distx::Error& error) {
            if (!distx::is_rank_loss(error)) throw;
            lost = true;
          }
        if (comm.rank() > 0) return;
        const std::lock_guard hold(lock);
        CAPTURE(stage);
        losses.erase(losses.begin() + 3, losses.end() - 2);  // of the step that was interrupted
        if (first.empty()) first = losses;
        CHECK(losses == first);
      });
    };
    CHECK_THROWS(run());
  }
  CHECK(first.size() == 5);
}

TEST_CASE("an optimizer of LibTorch is refused where weights or gradients are sharded") {
  on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    const auto module = made<Plain>(5);
    torch::optim::SGD optimizer(module->parameters(), 0.1);
    Training<> training(*module, comm, distx::NoOptimizer{}, {.stage = 1});
    check_throws<distx::InvalidState>([&] { training.step(optimizer); }, "this training is of stage 1; set .stage = 0");
  });
}
