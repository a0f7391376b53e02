// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "mesh_model.hpp"
#include "message_thrown.hpp"

TEST_CASE("weights distributed over a mesh train as in one process, at every stage") {
  using distx::Host;
  const distx::DataParallelOptions options{.clip_norm = 0.5};
  const mesh_model::Whole expected(options);
  REQUIRE(expected.norms.front() > 0.5);  // so that it is clipped, and the norm matters
  for (const auto shape : {std::array{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}, {2, 3}, {1, 7}}) {
    INFO(shape[0], " x ", shape[1]);
    toy::on_ranks(shape[0] * shape[1], [&](distx::ThreadCommunicator& comm) {
      const mesh_model::Grid mesh(comm, shape);
      mesh_model::train<Host, 0>(mesh, options, expected);
      mesh_model::train<Host, 1>(mesh, options, expected);
      mesh_model::train<Host, 3>(mesh, options, expected);
    });
  }
}

TEST_CASE("ranks with and without a part of the float16 weights have the same loss scale") {
  using distx::float16;
  using mesh_model::Grid, mesh_model::Data, mesh_model::Model;
  using Split = distx::Shard<1, Model>;
  for (const bool others : {false, true})  // else a rank has no part of anything
    for (const auto shape : {std::array{1, 2}, {2, 2}, {1, 3}}) {
      INFO(shape[0], " x ", shape[1], ", other weights: ", others);
      toy::on_ranks(shape[0] * shape[1], [&](distx::ThreadCommunicator& comm) {
        const Grid mesh(comm, shape);
        const distx::TensorParameter<float16, 2, Grid, distx::Layout<Split>> column("column", mesh, {5, 1},
                                                                                    [](const auto&) { return 1.0f; });
        const distx::TensorParameter<float, 1, Grid> bias("bias", mesh, {3}, [](const auto&) { return 1.0f; });
        distx::TensorParameterList<> list;
        list.add(column);
        if (others) list.add(bias);
        distx::MeshParallel<Data, distx::ZeRO<0>, distx::Precision<float16>> training(mesh, list, distx::SGD{},
                                                                                      {.loss_scale = 1024});
        const auto step = [&](float slope) {
          const auto scaled = [&](const auto&) { return slope * static_cast<float>(training.loss_scale()); };
          training.ready(column, distx::generate<float16, Split>(mesh, {5, 1}, [&](const auto& index) {
                           return static_cast<float16>(scaled(index));
                         }));
          if (others) training.ready(bias, distx::generate<float>(mesh, {3}, scaled));
          training.step({.learning_rate = 0.5});
        };
        CHECK(training.loss_scale() == 1024);
        step(0.5f);
        CHECK(training.skipped_steps() == 0);
        step(1000);  // more than float16 has once it is scaled
        CHECK(training.loss_scale() == 512);
        CHECK(training.skipped_steps() == 1);
        step(0.5f);
        CHECK(training.loss_scale() == 512);
        for (const float16 x : column.local()) CHECK(static_cast<float>(x) == 0.5f);
        if (others) CHECK(bias.local()[2] == 0.5f);
      });
    }
}

TEST_CASE("a float gradient of bfloat16 weights is reduced over the mesh before it is rounded") {
  using distx::bfloat16;
  using mesh_model::Grid, mesh_model::Data, mesh_model::Model;
  toy::on_ranks(3, [&](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, {1, 3});
    const distx::TensorParameter<bfloat16, 1, Grid> weight("weight", mesh, {2}, [](const auto&) { return 0.0f; });
    distx::TensorParameterList<> list;
    list.add(weight);
    distx::MeshParallel<Data, distx::ZeRO<0>, distx::Precision<bfloat16>> training(mesh, list, distx::SGD{});
    const std::array terms{1.0035f, -1.0035f};  // each would be rounded to 1
    training.ready(weight, distx::from_local<distx::Partial<Model>>(mesh, {2}, std::span(terms)));
    training.step({.learning_rate = 1});
    CHECK(static_cast<float>(weight.local()[0]) == -3.015625f);
    CHECK(static_cast<float>(weight.local()[1]) == 3.015625f);
  });
}

TEST_CASE("gradients are rounded to the type of Compress along the data axis of a mesh") {
  using mesh_model::Grid, mesh_model::Data, mesh_model::Model;
  using Split = distx::Shard<0, Model>;
  toy::on_ranks(4, [&](distx::ThreadCommunicator& comm) {
    for (const int stage : {0, 1, 3}) {
      const Grid mesh(comm, {2, 2});
      const distx::TensorParameter<float, 1, Grid, distx::Layout<Split>> weight("weight", mesh, {40},
                                                                                [](const auto&) { return 0.0f; });
      distx::TensorParameterList<> list;
      list.add(weight);
      distx::MeshParallel<Data, distx::ZeRO<distx::Dynamic>, distx::Compress<distx::bfloat16>> training(
          mesh, list, distx::SGD{}, {.stage = stage});
      training.ready(weight, distx::full<float, Split>(mesh, {40}, 1.0035f));  // 1 in bfloat16
      training.step({.learning_rate = 1});
      const auto whole = training.unshard(weight);
      for (const float value : weight.local()) CHECK(value == -1);
    }
  });
}

TEST_CASE("custom updates of what a rank owns on a mesh give the weights of update, also where a rank has no part") {
  using mesh_model::Grid, mesh_model::Data, mesh_model::Model;
  using Cut = distx::Layout<distx::Shard<0, Model>>;
  for (const auto shape : {std::array{1, 1}, {2, 1}, {2, 2}, {1, 3}, {1, 7}}) {
    INFO(shape[0], " x ", shape[1]);
    toy::on_ranks(shape[0] * shape[1], [&](distx::ThreadCommunicator& comm) {
      const Grid mesh(comm, shape);
      const auto trained = [&](bool by_hand) {
        const distx::TensorParameter<float, 1, Grid, Cut> cut("cut", mesh, {2}, [](const auto&) { return 1.0f; });
        const distx::TensorParameter<float, 1, Grid> whole("whole", mesh, {9}, [](const auto&) { return 2.0f; });
        distx::TensorParameterList<> list;
        list.add(cut, whole);
        distx::MeshParallel<Data, distx::ZeRO<1>> training(mesh, list, distx::SGD{});
        const auto slope = [](const auto& index) { return 1 + static_cast<float>(index[0]); };
        training.ready(cut, distx::generate<float, distx::Shard<0, Model>>(mesh, {2}, slope));
        training.ready(whole, distx::generate<float>(mesh, {9}, slope));
        training.reduce_gradients();
        if (by_hand) {
          for (const auto& fragment : training.owned()) {
            const auto weights = fragment.weights<float>();
            const auto part = fragment.parameter == 0 ? cut.local() : whole.local();
            REQUIRE(fragment.parameter < 2);
            CHECK(weights.data() == part.data() + fragment.offset);
            for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= 0.5f * fragment.gradients<float>()[i];
          }
        } else {
          training.update_weights({.learning_rate = 0.5});
        }
        training.gather_weights();
        std::vector<float> values(cut.local().begin(), cut.local().end());
        values.insert(values.end(), whole.local().begin(), whole.local().end());
        return values;
      };
      const auto expected = trained(false);
      CHECK(expected.back() == -2.5f);
      CHECK(trained(true) == expected);
    });
  }
}

TEST_CASE("ranks along the model axis with other lists of weights, options or optimizers get the difference") {
  using mesh_model::Grid, mesh_model::Data, mesh_model::Model;
  using Split = distx::Layout<distx::Shard<0, Model>>;
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    const bool first = comm.rank() == 0;
    const auto differs = [&](bool swaps, const distx::DataParallelOptions& options, float momentum) {
      auto own = comm.split(0, comm.rank());
      const Grid mesh(own, {1, 2});
      const auto one = [](const auto&) { return 1.0f; };
      const distx::TensorParameter<float, 2, Grid, Split> a("a", mesh, {4, 3}, one), b("b", mesh, {4, 3}, one);
      distx::TensorParameterList<> list;
      swaps ? list.add(b).add(a) : list.add(a).add(b);
      return test::message_thrown<distx::MismatchError>(
          [&] { distx::MeshParallel<Data, distx::ZeRO<0>>(mesh, list, distx::SGD{.momentum = momentum}, options); });
    };
    const auto order = differs(!first, {}, 0);
    CHECK_MESSAGE(order.find("weight 0 differs: rank 0 has 'a' of 4 x 3; rank 1 has 'b' of 4 x 3") != std::string::npos,
                  order);
    const auto clipping = differs(false, {.clip_norm = first ? 1.0 : 2.0}, 0);
    CHECK_MESSAGE(clipping.find(".clip_norm differs: rank 0 has 1; rank 1 has 2") != std::string::npos, clipping);
    const auto optimizer = differs(false, {}, first ? 0.5f : 0.9f);
    CHECK_MESSAGE(optimizer.find("the optimizer differs: rank 0 has distx::SGD{.momentum = 0.5") != std::string::npos,
                  optimizer);
  });
}
