// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Learns to read handwritten digits of 8 x 8 pixels, by softmax regression. Each rank computes a part of each batch.
//   gzip -dc build/data/digits.csv.gz > digits.csv
//   mpirun -np 2 build/examples/train_digits digits.csv
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include <distx/distx.hpp>
#include <distx/mpi.hpp>

constexpr std::size_t inputs = 65, digits = 10, batch = 16;  // the last input is 1: its weights are the biases

struct Sample {
  float input[inputs];
  std::size_t digit;
};

std::vector<float> probabilities(const std::vector<float>& weight, const Sample& sample) {
  std::vector<float> p(digits);
  for (std::size_t i = 0; i < weight.size(); ++i) p[i / inputs] += weight[i] * sample.input[i % inputs];
  float sum = 0;
  for (float& x : p) sum += x = std::exp(x);
  for (float& x : p) x /= sum;
  return p;
}

int main(int argc, char** argv) {
  auto connector = distx::connect(argc, argv);
  auto comm = distx::MpiCommunicator(connector);

  std::vector<Sample> samples;
  std::ifstream file(argc > 1 ? argv[1] : "digits.csv");
  for (Sample sample; (file >> std::ws).good(); samples.push_back(sample)) {
    for (float& x : std::span(sample.input).first(inputs - 1)) file >> x, x /= 16, file.ignore();
    sample.input[inputs - 1] = 1;
    file >> sample.digit;
  }
  if (samples.empty()) return std::fprintf(stderr, "usage: train_digits DIGITS.csv\n"), 1;
  const std::size_t learned = samples.size() * 4 / 5;  // the other samples are held out
  const distx::DistributedSampler sampler(learned, comm, {.batch_size = batch});

  std::vector<float> weight(inputs * digits), gradient(weight.size());
  std::vector parameters{distx::ref("weight", weight, gradient)};
  distx::DataParallel<distx::ZeRO<0>> training(comm, parameters, distx::AdamW{});
  for (std::uint64_t epoch = 0; epoch < 30; ++epoch) {
    const auto mine = sampler.epoch(epoch);  // this rank's samples, in another order in each epoch
    for (std::size_t first = 0; first < mine.size(); first += batch) {
      std::ranges::fill(gradient, 0.0f);
      for (const std::size_t index : std::span(mine).subspan(first, batch)) {
        auto error = probabilities(weight, samples[index]);
        error[samples[index].digit] -= 1;
        for (std::size_t i = 0; i < weight.size(); ++i)
          gradient[i] += error[i / inputs] * samples[index].input[i % inputs] / batch;
      }
      training.ready(weight);                  // starts to average the gradient over the ranks
      training.step({.learning_rate = 0.01});  // completes that, and updates the weights
    }
  }
  const auto held_out = std::span(samples).subspan(learned);
  const auto read = std::ranges::count_if(held_out, [&](const Sample& sample) {
    const auto p = probabilities(weight, sample);
    return std::ranges::max(p) == p[sample.digit];
  });
  if (comm.rank() == 0) std::printf("%td of %zu held-out digits are read\n", read, held_out.size());
}
