// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/optim/muon.hpp>
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/tensor.hpp>

#include "matrix.hpp"

using model::Folder;
using model::on_ranks;
using model::WholeState;

namespace {

struct Data {};
struct Model {};
struct Third {};
using Grid = distx::Mesh<Data, Model, Third>;
using Shape = std::array<int, 3>;

template <class... Ps>
using In = distx::Layout<Ps...>;
template <std::size_t Dim, class Axis>
using Shard = distx::Shard<Dim, Axis>;

/// The layouts of the weights below.
struct Layouts {
  using rows = In<Shard<0, Model>>;
  using both = In<Shard<0, Model>, Shard<1, Third>>;
  using cube = In<Shard<1, Model>>;
  using tiny = In<Shard<0, Model>>;
};
struct OtherLayouts {
  using rows = In<Shard<1, Third>>;
  using both = In<Shard<1, Model>, Shard<0, Third>>;
  using cube = In<Shard<2, Third>, Shard<0, Model>>;
  using tiny = In<>;
};

template <std::size_t Rank, class T, class L>
auto weight(const char* name, const Grid& mesh, const distx::Extents<Rank>& extents, float offset,
            const distx::ParameterOptions& options = {}) {
  const auto value = [offset](const distx::Extents<Rank>& index) {
    float sum = offset;
    for (std::size_t d = 0; d < Rank; ++d) sum += std::sin(static_cast<float>(index[d] * (d + 1)));
    return sum;
  };
  return distx::TensorParameter<T, Rank, Grid, L>(name, mesh, extents, value, options);
}

/// A training on a mesh, some parts of which are empty, others replicated.
template <class L, class T, class... Policies>
class MeshTrainer {
 public:
  /// @param cube  whether the model has weights of three dimensions and of none, which no DataParallel takes
  template <class Optimizer>
  MeshTrainer(const Grid& mesh, const Optimizer& optimizer, const distx::DataParallelOptions& options, float offset = 0,
              bool cube = true)
      : mesh_(mesh),
        has_cube_(cube),
        rows_(weight<2, T, typename L::rows>("rows", mesh, {5, 3}, offset, {.rows = 5})),
        both_(weight<2, T, typename L::both>("both", mesh, {7, 6}, offset, {.rows = 7})),
        cube_(weight<3, T, typename L::cube>("cube", mesh, {3, 4, 5}, offset)),
        scale_(weight<0, T, In<>>("scale", mesh, {}, offset)),
        same_(weight<1, T, In<>>("same", mesh, {6}, offset)),
        tiny_(weight<1, T, typename L::tiny>("tiny", mesh, {1}, offset)),
        frozen_(weight<2, T, typename L::both>("frozen", mesh, {3, 2}, offset, {.trainable = false})),
        training_(mesh, list(), optimizer, options) {}

  void step(std::uint64_t number) {
    {
      const auto weights = training_.unshard(tiny_, rows_, both_, same_);
      ready(tiny_, number);
      ready(rows_, number);
      ready(both_, number);
      ready(same_, number);
    }
    if (has_cube_) {
      const auto weights = training_.unshard(cube_, scale_);
      ready(cube_, number);
      ready(scale_, number);
    }
    training_.step({.learning_rate = 0.01});
  }
  auto& training() { return training_; }

 private:
  distx::TensorParameterList<> list() {
    distx::TensorParameterList<> all;
    all.add(tiny_, rows_, both_, same_);
    if (has_cube_) all.add(cube_, scale_);
    return all.add(frozen_);
  }
  template <class W>
  void ready(const W& weight, std::uint64_t number) {
    using Layout = distx::detail::layout_with<typename W::layout_type, distx::Partial<Data>>;
    distx::DistTensor<T, W::rank(), Grid, Layout> gradient(mesh_, weight.extents());
    for (std::size_t i = 0; i < gradient.local().size(); ++i)
      gradient.local()[i] =
          static_cast<T>(static_cast<float>(weight.local()[i]) - std::cos(static_cast<float>(i + 3 * number)) +
                         static_cast<float>(mesh_.coordinate<Data>()));
    training_.ready(weight, gradient);
  }

  Grid mesh_;
  bool has_cube_;
  distx::TensorParameter<T, 2, Grid, typename L::rows> rows_;
  distx::TensorParameter<T, 2, Grid, typename L::both> both_;
  distx::TensorParameter<T, 3, Grid, typename L::cube> cube_;
  distx::TensorParameter<T, 0, Grid> scale_;
  distx::TensorParameter<T, 1, Grid> same_;
  distx::TensorParameter<T, 1, Grid, typename L::tiny> tiny_;
  distx::TensorParameter<T, 2, Grid, typename L::both> frozen_;
  distx::MeshParallel<Data, Policies...> training_;
};

using AnyStage = distx::ZeRO<distx::Dynamic>;
using Float = MeshTrainer<Layouts, float, AnyStage>;
using Turned = MeshTrainer<OtherLayouts, float, AnyStage>;
using HalfMesh = MeshTrainer<Layouts, distx::bfloat16, AnyStage, distx::Precision<distx::bfloat16>>;

int ranks_of(const Shape& shape) { return shape[0] * shape[1] * shape[2]; }

constexpr Shape shapes[] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 3}, {2, 2, 1}, {1, 2, 2}, {2, 2, 2}};

template <class Trainer, class Optimizer = distx::AdamW>
void save(const Folder& folder, const Shape& shape, int stage, WholeState& saved, bool cube = true) {
  on_ranks(ranks_of(shape), [&](distx::ThreadCommunicator& comm) {
    Trainer trainer(Grid(comm, shape), Optimizer{}, {.bucket_bytes = 100, .stage = stage}, 0, cube);
    for (std::uint64_t step = 0; step < 2; ++step) trainer.step(step);
    saved.add(trainer.training().state());
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 2});
  });
}
template <class Trainer, class Optimizer = distx::AdamW>
void load(const Folder& folder, const Shape& shape, int stage, WholeState& loaded, bool cube = true) {
  on_ranks(ranks_of(shape), [&](distx::ThreadCommunicator& comm) {
    Trainer trainer(Grid(comm, shape), Optimizer{}, {.stage = stage}, 5, cube);
    CHECK(distx::checkpoint::load(*distx::checkpoint::latest(folder.path()), trainer.training()).step == 2);
    loaded.add(trainer.training().state());
  });
}

/// Master weights of bfloat16 and a custom optimizer on meshes.
struct OnMesh {
  using Ranks = Shape;
  static constexpr Ranks ranks[] = {{1, 1, 1}, {1, 2, 1}, {1, 1, 3}, {2, 1, 2}, {2, 2, 2}};
  static int count(const Shape& shape) { return ranks_of(shape); }

  OnMesh(distx::ThreadCommunicator& comm, const Shape& shape, int stage, std::size_t bucket_bytes, float offset)
      : trainer(Grid(comm, shape), model::Signs{}, {.bucket_bytes = bucket_bytes, .stage = stage}, offset) {}

  HalfMesh trainer;
};

/// The model without its cube as a DataParallel has it.
template <class Optimizer>
struct Plain {
  template <class C>
  Plain(C& comm, int stage) : training(comm, list(), Optimizer{}, {.bucket_bytes = 90, .stage = stage}) {}
  distx::ParameterList<> list() {
    const auto add = [&](const char* name, std::size_t size, std::size_t rows, bool trainable = true) {
      parameters.emplace_back(name, size, distx::ParameterOptions{.trainable = trainable, .rows = rows});
    };
    add("same", 6, 0);
    add("both", 42, 7);
    add("rows", 15, 5);
    add("frozen", 6, 3, false);
    add("tiny", 1, 0);
    return parameters;
  }
  std::vector<distx::Parameter<float>> parameters;
  model::Any training;
};

}  // namespace

TEST_CASE("a checkpoint of any mesh loads on any other, at any stage and in other layouts, with the same bits") {
  int number = 0;
  for (const auto& from : shapes) {
    const Folder folder;
    WholeState saved;
    const int stage = number++ % 4;
    save<Float>(folder, from, stage, saved);
    for (const auto& to : shapes) {
      INFO("from ", from[0], " x ", from[1], " x ", from[2], " to ", to[0], " x ", to[1], " x ", to[2]);
      WholeState loaded, turned;
      load<Float>(folder, to, number++ % 4, loaded);
      CHECK(saved == loaded);
      load<Turned>(folder, to, number++ % 4, turned);
      CHECK(saved == turned);
    }
  }
}

TEST_CASE("a checkpoint of a mesh with 1, 2, 3, 4 or 8 ranks at any stage loads on any other with the same bits") {
  model::check_matrix<OnMesh>();
}

TEST_CASE("a training on a mesh resumes with the bits of one that never stopped, with bfloat16 and master weights") {
  for (const auto& shape : {Shape{2, 2, 1}, Shape{1, 1, 3}})
    for (int stage = 0; stage < 4; ++stage) {
      INFO(shape[0], " x ", shape[1], " x ", shape[2], ", stage ", stage);
      const Folder folder;
      WholeState uninterrupted, resumed;
      on_ranks(ranks_of(shape), [&](distx::ThreadCommunicator& comm) {
        const Grid mesh(comm, shape);
        {
          HalfMesh trainer(mesh, distx::AdamW{}, {.stage = stage, .clip_norm = 2});
          distx::checkpoint::PendingSave<> pending;
          for (std::uint64_t step = 0; step < 4; ++step) {
            if (step == 2) pending = distx::checkpoint::save_async(folder.path(), trainer.training(), {.step = step});
            trainer.step(step);
          }
          pending.finish();
          uninterrupted.add(trainer.training().state());
        }
        HalfMesh trainer(mesh, distx::AdamW{}, {.stage = stage, .clip_norm = 2}, 1);
        auto step = distx::checkpoint::load(*distx::checkpoint::latest(folder.path()), trainer.training()).step;
        for (; step < 4; ++step) trainer.step(step);
        resumed.add(trainer.training().state());
      });
      CHECK(uninterrupted == resumed);
    }
}

TEST_CASE(
    "averages on a mesh are saved, also by ranks with empty parts, and load on any other mesh with the same bits") {
  int number = 0;
  for (const auto& from : shapes) {
    const Folder folder;
    WholeState saved;
    on_ranks(ranks_of(from), [&](distx::ThreadCommunicator& comm) {
      Float trainer(Grid(comm, from), distx::AdamW{}, {.bucket_bytes = 100, .stage = number % 4});
      auto slow = trainer.training().ema(0.9), fast = trainer.training().ema(0.5);
      for (std::uint64_t step = 0; step < 2; ++step) {
        trainer.step(step);
        slow.update();
        fast.update();
      }
      saved.add(trainer.training().state());
      distx::checkpoint::save(folder.path(), trainer.training(), {.step = 2});
    });
    for (const auto& to : shapes) {
      INFO("from ", from[0], " x ", from[1], " x ", from[2], " to ", to[0], " x ", to[1], " x ", to[2]);
      WholeState loaded;
      on_ranks(ranks_of(to), [&, stage = ++number % 4](distx::ThreadCommunicator& comm) {
        Turned trainer(Grid(comm, to), distx::AdamW{}, {.stage = stage}, 5);
        const auto slow = trainer.training().ema(0.9), fast = trainer.training().ema(0.5);
        distx::checkpoint::load(*distx::checkpoint::latest(folder.path()), trainer.training());
        loaded.add(trainer.training().state());
      });
      CHECK(saved == loaded);
    }
  }
}

TEST_CASE_TEMPLATE("a DataParallel loads the checkpoint of a mesh, and a mesh that of a DataParallel", Optimizer,
                   distx::AdamW, distx::Mixed<distx::Muon, distx::AdamW>) {
  std::vector<Shape> all(std::begin(shapes), std::end(shapes));
  all.push_back({1, 5, 1});
  for (const auto& shape : all)
    for (const int ranks : {1, 3}) {
      INFO(shape[0], " x ", shape[1], " x ", shape[2], ", ", ranks);
      const Folder of_mesh, of_plain;
      WholeState saved, plain, again;
      save<Turned, Optimizer>(of_mesh, shape, 1, saved, false);
      on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        Plain<Optimizer> other(comm, 3);
        distx::checkpoint::load(*distx::checkpoint::latest(of_mesh.path()), other.training);
        plain.add(other.training.state());
        distx::checkpoint::save(of_plain.path(), other.training, {.step = 2});
      });
      CHECK(saved == plain);
      load<Float, Optimizer>(of_plain, shape, 2, again, false);
      CHECK(saved == again);
    }
}

TEST_CASE("a checkpoint of a mesh with other weights is rejected on every rank with all differences") {
  const Folder folder;
  WholeState saved;
  save<Float>(folder, {1, 2, 1}, 0, saved);
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Float trainer(Grid(comm, {1, 1, 2}), distx::AdamW{}, {.stage = 0}, 0, false);
    std::string said;
    try {
      distx::checkpoint::load(*distx::checkpoint::latest(folder.path()), trainer.training());
    } catch (const distx::CheckpointError& error) {
      said = error.what();
    }
    CHECK(said.find("'cube' is not in the training, 'optim.state.cube.exp_avg' is not in the training") !=
          std::string::npos);
    trainer.step(0);  // the training can continue
  });
}

TEST_CASE("load_weights loads the files of whole weights into any mesh, converted and renamed") {
  const Folder folder;
  const auto write = [&](const std::string& name, const std::vector<std::uint64_t>& shape) {
    std::size_t size = 1;
    for (const auto extent : shape) size *= extent;
    std::vector<float> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<float>(i + name.size()) / 8;
    return std::pair(distx::checkpoint::SafetensorsInput{"file." + name, "F32", shape, {}}, std::move(values));
  };
  std::vector<std::pair<distx::checkpoint::SafetensorsInput, std::vector<float>>> tensors;
  tensors.push_back(write("rows", {5, 3}));
  tensors.push_back(write("both", {7, 6}));
  tensors.push_back(write("cube", {3, 20}));  // of other dimensions, in the same order
  tensors.push_back(write("scale", {}));
  tensors.push_back(write("same", {6}));
  tensors.push_back(write("tiny", {1}));
  tensors.push_back(write("frozen", {3, 2}));
  std::vector<distx::checkpoint::SafetensorsInput> inputs;
  std::map<std::string, std::vector<float>> expected;
  for (auto& [input, values] : tensors) {
    input.bytes = std::as_bytes(std::span(values));
    expected[input.name] = values;
    inputs.push_back(input);
  }
  std::filesystem::create_directories(folder.path());
  const auto file = folder.path() / "model.safetensors";
  distx::checkpoint::write_safetensors(file, inputs);
  const auto load = [&]<class Trainer, class T>(const Shape& shape, int stage) {
    INFO(shape[0], " x ", shape[1], " x ", shape[2], ", stage ", stage);
    on_ranks(ranks_of(shape), [&](distx::ThreadCommunicator& comm) {
      Trainer trainer(Grid(comm, shape), distx::AdamW{}, {.bucket_bytes = 100, .stage = stage});
      distx::checkpoint::load_weights(file, trainer.training(),
                                      {.rename = [](const std::string& name) { return "file." + name; }});
      std::size_t weights = 0;
      trainer.training().for_each_full_weight([&](const std::string& name, distx::Span<const distx::AnyElement> all) {
        const auto& wanted = expected.at("file." + name);
        REQUIRE(all.size() == wanted.size());
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < wanted.size(); ++i)
          if (static_cast<float>(static_cast<const T*>(all.data())[i]) != wanted[i]) ++wrong;
        CHECK(wrong == 0);
        ++weights;
      });
      CHECK(weights == expected.size());
    });
  };
  int number = 0;
  for (const auto& shape : shapes) {
    load.operator()<Float, float>(shape, number++ % 4);
    load.operator()<Turned, float>(shape, number++ % 4);
    load.operator()<HalfMesh, distx::bfloat16>(shape, number++ % 4);
  }
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Float trainer(Grid(comm, {1, 2, 1}), distx::AdamW{}, {.stage = 0});
    std::string said;
    try {
      distx::checkpoint::load_weights(file, trainer.training(),
                                      {.rename = [](const std::string& name) { return "file." + name; },
                                       .transposed = [](const std::string& name) { return name == "rows"; }});
    } catch (const distx::CheckpointError& error) {
      said = error.what();
    }
    CHECK(said.find("'rows', F32 [5, 3] in the training, is transposed F32 [5, 3] in the file, and sharded by the "
                    "mesh") != std::string::npos);
  });
}

TEST_CASE("load_weights loads the parts that a mesh has saved into any other mesh, and master weights unrounded") {
  using Weights = std::map<std::string, std::vector<float>>;
  const auto weights_of = [](auto& training) {
    Weights all;
    training.for_each_full_weight([&](const std::string& name, distx::Span<const distx::AnyElement> values) {
      if (values.type() != distx::ElementType::f32) return;
      const auto* const first = static_cast<const float*>(values.data());
      all[name].assign(first, first + values.size());
    });
    return all;
  };
  for (const auto& from : {Shape{1, 2, 2}, Shape{2, 1, 3}}) {
    const Folder folder;
    Weights saved;
    on_ranks(ranks_of(from), [&](distx::ThreadCommunicator& comm) {
      Turned trainer(Grid(comm, from), distx::AdamW{}, {.bucket_bytes = 100, .stage = 1});
      trainer.step(0);
      auto weights = weights_of(trainer.training());
      if (comm.rank() == 0) saved = std::move(weights);
      distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1});
    });
    const auto path = *distx::checkpoint::latest(folder.path());
    int stage = 0;
    for (const auto& shape : shapes) {
      INFO(shape[0], " x ", shape[1], " x ", shape[2]);
      on_ranks(ranks_of(shape), [&](distx::ThreadCommunicator& comm) {
        Float trainer(Grid(comm, shape), distx::AdamW{}, {.bucket_bytes = 100, .stage = stage % 4}, 5);
        distx::checkpoint::load_weights(path, trainer.training());
        CHECK(weights_of(trainer.training()) == saved);
        HalfMesh rounded(Grid(comm, shape), distx::AdamW{}, {.stage = stage % 4}, 5);
        distx::checkpoint::load_weights(path, rounded.training());
        std::size_t masters = 0, wrong = 0;
        for (const auto& array : rounded.training().state().arrays) {
          if (!array.name.ends_with(".master")) continue;
          ++masters;
          const auto& whole = saved.at(array.name.substr(12, array.name.size() - 12 - 7));  // optim.state.NAME.master
          const auto* const first = static_cast<const float*>(array.values.data());
          for (std::size_t i = 0; i < array.values.size(); ++i) {
            std::size_t rest = array.offset + i, at = 0, stride = 1;  // in this rank's part, and in the whole array
            for (std::size_t d = array.shape.size(); d-- > 0; stride *= array.shape[d]) {
              at += (array.part_begin[d] + rest % array.part_shape[d]) * stride;
              rest /= array.part_shape[d];
            }
            if (first[i] != whole[at]) ++wrong;
          }
        }
        CHECK(masters == 6);
        CHECK(wrong == 0);
      });
      ++stage;
    }
  }
}
