// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <functional>
#include <set>
#include <vector>

#include "distx/parallel/data_parallel.hpp"
#include "distx/torch/detail/layer_wrapper.hpp"
#include "distx/torch/tensor.hpp"

namespace distx_torch::inline DISTX_ABI {

/// The options of a DataParallel that concern its module.
struct ModuleOptions {
  /// Whether every rank receives the buffers of rank `.broadcast_from` after each step, in one message: running means
  /// and the like, as by PyTorch's broadcast_buffers.
  bool broadcast_buffers = true;
  /// Returns the options of a parameter, such as its group. `.trainable` and `.shape` are set from the tensor
  /// afterwards, and so is `.unit` of the weights of a Sharded layer. By default a tensor of two dimensions has
  /// `.rows`, so that matrix optimizers treat it.
  std::function<distx::ParameterOptions(const std::string& name, const at::Tensor& value)> options_of =
      [](const std::string&, const at::Tensor& value) {
        return distx::ParameterOptions{.rows = value.dim() == 2 ? static_cast<std::size_t>(value.size(0)) : 0};
      };
};

namespace detail {

/// A scope of `unshard`, of any memory space.
using Whole = std::shared_ptr<const void>;

/// The calls of a training that hooks and layers make. Parameters have the numbers of the module's list.
struct TrainingOfModule {
  virtual void accept_gradient(std::size_t parameter, const at::Tensor& gradient) = 0;
  [[nodiscard]] virtual Whole unshard_layer(const std::vector<std::size_t>& parameters) = 0;

 protected:
  ~TrainingOfModule() = default;
};

/// The weights of one Sharded layer. Graphs refer to it, and may outlive module and training.
struct LayerWeights {
  std::string name{};
  TrainingOfModule* training = nullptr;  ///< null while there is none
  std::vector<std::size_t> parameters{};
  std::size_t trained = 0;  ///< of them
  std::size_t missing = 0;  ///< gradients of the backward pass for which they are whole
  Whole backward{};
  /// Makes the layer once more, with the same values; null unless it is deferred, and once a training has these.
  std::function<std::shared_ptr<torch::nn::Module>()> remake{};
  std::shared_ptr<torch::nn::Module> remade{};
  std::size_t unread = 0;  ///< parameters that are to be read from it

  [[nodiscard]] Whole open() const { return training == nullptr ? nullptr : training->unshard_layer(parameters); }
  void begin_backward() {
    if (training == nullptr || backward) return;
    backward = open();
    missing = trained;
  }
  void count_gradient() {
    if (backward && --missing == 0) backward.reset();
  }
};

/// A module that a layer is wrapped in.
class ShardedModule {
 public:
  [[nodiscard]] const std::shared_ptr<LayerWeights>& weights() const noexcept { return weights_; }

 protected:
  ~ShardedModule() = default;

 private:
  std::shared_ptr<LayerWeights> weights_ = std::make_shared<LayerWeights>();
};

/// The parameters and buffers of a module, in memory of a training.
///
/// The module's tensors stay what they are: only the memory below their storages changes, so autograd's saved tensors,
/// views and torch::optim optimizers follow. In a training on a GPU, tensors of the host are moved there.
template <class Space>
class ModuleParameters {
  using Parameter = distx::Parameter<distx::AnyElement, Space>;
  using AnySpan = distx::Span<distx::AnyElement, Space>;

 public:
  ModuleParameters(torch::nn::Module& module, const ModuleOptions& options) {
    std::set<const c10::StorageImpl*> seen;  // a tensor of two modules is listed once, under its first name
    const auto is_new = [&](const at::Tensor& tensor) {
      return tensor.defined() && seen.insert(tensor.storage().unsafeGetStorageImpl()).second;
    };
    find_layers(module);
    std::set<const at::TensorImpl*> tensors;
    for (const auto& item : module.named_parameters())
      if (item.value().defined() && tensors.insert(item.value().unsafeGetTensorImpl()).second)
        add_parameter(item.key(), item.value(), is_new(item.value()), options);
    for (const auto& item : module.named_buffers()) {
      if (!item.value().defined()) continue;
      if (is_new(item.value()))
        add_buffer(item.key(), item.value());
      else if (item.value().device() != Place<Space>::device())
        refuse_tensor("'" + plain_name(item.key()) +
                          "' shares its storage with another tensor; move the module before its training is made",
                      "DataParallel");
    }
    for (const auto& item : module.named_parameters(true)) {
      Slot* const slot = slot_of(item.value());
      LayerWeights* const layer = layer_of(item.key());
      if (slot == nullptr || layer == nullptr) continue;
      layer->parameters.push_back(slot->number);
      layer->trained += slot->parameter->options().trainable ? 1 : 0;
      if (slot->layers.empty()) ++layer->unread;
      slot->layers.push_back(layer);
    }
  }
  ModuleParameters(const ModuleParameters&) = delete;
  ModuleParameters& operator=(const ModuleParameters&) = delete;
  ~ModuleParameters() = default;

  [[nodiscard]] const distx::ParameterList<Space>& list() const noexcept { return list_; }
  /// Makes gradients of backward passes go to a training, which must outlive the next call with null.
  void attach(TrainingOfModule* training) {
    for (const auto& layer : layers_) {
      layer->backward.reset();
      layer->training = training;
    }
    for (const auto& slot : slots_)
      if (slot->parameter->options().trainable)
        torch::autograd::impl::set_post_acc_grad_hooks(
            slot->tensor, training == nullptr ? nullptr : std::make_unique<Hook>(*slot, *training));
  }
  /// Begins the next backward pass that may give each parameter a gradient, and ends what the last one has left.
  void begin_pass() {
    for (const auto& slot : slots_) slot->has_gradient = false;
    for (const auto& layer : layers_) layer->backward.reset();
  }
  [[nodiscard]] const Parameter& parameter(std::size_t number) const { return *slots_[number]->parameter; }
  [[nodiscard]] std::vector<const Parameter*> all() const {
    std::vector<const Parameter*> all;
    for (const auto& slot : slots_) all.push_back(slot->parameter.get());
    return all;
  }
  /// Shows averaged gradients as `.grad` of the tensors; none hides them.
  void show_gradients(const std::vector<distx::Fragment<Space>>& fragments) {
    if (fragments.empty())
      for (const auto& slot : slots_) slot->tensor.mutable_grad().reset();
    for (const auto& fragment : fragments) {
      const at::Tensor& tensor = slots_[fragment.parameter]->tensor;
      at::Tensor gradient = tensor_over(fragment.gradient, tensor.sizes());
      if (fragment.scale != 1 || gradient.scalar_type() != tensor.scalar_type())
        gradient = gradient.to(tensor.scalar_type()).mul_(fragment.scale);
      tensor.mutable_grad() = gradient;
    }
  }
  [[nodiscard]] const std::vector<distx::Span<std::byte, Space>>& buffers() const noexcept { return buffers_; }

 private:
  struct Slot {
    at::Tensor tensor;  // the module's own
    std::string key;    // its name below the module
    std::size_t number;
    at::Tensor on_host{};  // its first values, if it was moved
    std::shared_ptr<Parameter> parameter{};
    std::vector<LayerWeights*> layers{};
    bool has_gradient = false;  // of this pass

    /// Puts the tensor's storage over other memory, or makes every access an error.
    void place(AnySpan values) const {
      if (values.empty())
        return withhold(tensor, "'" + parameter->name() +
                                    "' is held in shards; use it in its Sharded layer, or in the scope of "
                                    "training.unshard()");
      using Owner = std::shared_ptr<Parameter>;
      const auto release = [](void* owner) { delete static_cast<Owner*>(owner); };
      give(tensor, {values.data(), new Owner(parameter), release, tensor.device()});
    }
  };
  struct Hook final : torch::autograd::PostAccumulateGradHook {
    Hook(Slot& of, TrainingOfModule& to) : slot(of), training(to) {}
    void operator()(const at::Tensor&) override {
      const at::NoGradGuard no_grad;
      if (std::exchange(slot.has_gradient, true))
        throw distx::InvalidState("'" + slot.parameter->name() +
                                      "' has a second gradient in this step; call step between two backward passes, or "
                                      "begin each with micro_batch",
                                  {.operation = "backward"});
      auto& gradient = slot.tensor.mutable_grad();
      if (gradient.layout() != at::kStrided)
        refuse_tensor(
            "the gradient of '" + slot.parameter->name() + "' is sparse; construct the embedding without .sparse(true)",
            "backward");
      training.accept_gradient(slot.number, gradient);
      gradient.reset();
      for (auto* layer : slot.layers) layer->count_gradient();
    }
    Slot& slot;
    TrainingOfModule& training;
  };

  void find_layers(torch::nn::Module& module) {
    const auto add = [&](const std::string& name, const torch::nn::Module& each) {
      if (dynamic_cast<const WrapperModule*>(&each) != nullptr) wrappers_.push_back(name.empty() ? "" : name + ".");
      const auto* const layer = dynamic_cast<const ShardedModule*>(&each);
      if (layer == nullptr) return;
      if (layer->weights()->training != nullptr)
        throw distx::InvalidState("the Sharded layer '" + name + "' is in another training; end that one first",
                                  {.operation = "DataParallel"});
      *layer->weights() = LayerWeights{.name = name, .remake = std::move(layer->weights()->remake)};
      layers_.push_back(layer->weights());
    };
    add("", module);
    for (const auto& item : module.named_modules("", false)) add(item.key(), *item.value());
  }
  /// Returns the name that a parameter or buffer would have if no layer were wrapped.
  [[nodiscard]] std::string plain_name(std::string name) const {
    for (auto wrapper = wrappers_.rbegin(); wrapper != wrappers_.rend(); ++wrapper)  // inner ones before outer ones
      if (name.starts_with(*wrapper + "layer.")) name.erase(wrapper->size(), 6);
    return name;
  }
  /// Returns the innermost Sharded layer that a name is in, or null.
  [[nodiscard]] LayerWeights* layer_of(const std::string& name) const {
    LayerWeights* found = nullptr;
    for (const auto& layer : layers_)
      if ((layer->name.empty() || name.starts_with(layer->name + ".")) &&
          (found == nullptr || found->name.size() < layer->name.size()))
        found = layer.get();
    return found;
  }
  [[nodiscard]] Slot* slot_of(const at::Tensor& tensor) const {
    for (const auto& slot : slots_)
      if (slot->tensor.is_same(tensor)) return slot.get();
    return nullptr;
  }
  void add_parameter(const std::string& key, const at::Tensor& tensor, bool own_storage, const ModuleOptions& options) {
    const std::string name = plain_name(key);
    if (!own_storage || tensor.storage_offset() != 0 || tensor.storage().nbytes() != tensor.nbytes())
      refuse_tensor("'" + name + "' shares its storage with another tensor; clone() it before it becomes a parameter",
                    "DataParallel");
    const at::Device device = Place<Space>::device();
    if (!tensor.is_contiguous() || !(tensor.device().is_cpu() || tensor.device() == device))
      refuse_tensor("'" + name + "' is " +
                        (tensor.is_contiguous() ? "on " + tensor.device().str() + ", its training on " + device.str()
                                                : "not contiguous") +
                        "; convert or move the module before its training is made",
                    "DataParallel");
    auto described = options.options_of(name, tensor);
    described.trainable = tensor.requires_grad();
    described.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
    if (const auto* const layer = layer_of(key); layer != nullptr) {
      described.unit = layer->name.empty() ? "the module" : layer->name;
    } else {
      if (described.unit.empty()) described.unit = "outside of Sharded layers";
      described.always_whole = true;
    }
    const auto slot = std::make_shared<Slot>(Slot{tensor, key, slots_.size()});
    // The tensor's own memory is freed as soon as its values are copied. The slots outlive the training.
    slot->parameter = std::make_shared<Parameter>(
        name, element_type_of(tensor.scalar_type()), static_cast<std::size_t>(tensor.numel()),
        [&self = *slot](AnySpan values) { copy_out(self, values); }, described);
    slot->parameter->on_value([weak = std::weak_ptr(slot)](AnySpan values) {
      if (const auto self = weak.lock()) self->place(values);
    });
    if (tensor.device() != device) {
      slot->on_host = tensor.detach();
      slot->tensor.set_data(at::empty_like(tensor, tensor.options().device(device)));
      slot->place({});
    }
    list_.add(*slot->parameter);
    slots_.push_back(slot);
  }
  /// Gives the training a tensor's values, and frees their memory.
  static void copy_out(Slot& slot, AnySpan values) {
    const at::NoGradGuard no_grad;
    const at::Tensor copy = tensor_over(values, slot.tensor.sizes());
    LayerWeights* const layer = slot.layers.empty() ? nullptr : slot.layers.front();
    if (layer == nullptr || !layer->remake) {
      copy.copy_(slot.on_host.defined() ? slot.on_host : slot.tensor.detach());
      slot.on_host.reset();
      return slot.place({});
    }
    if (layer->remade == nullptr) layer->remade = layer->remake();
    const std::string of_layer = layer->name.empty() ? "layer." : layer->name + ".layer.";
    copy.copy_(layer->remade->named_parameters()[slot.key.substr(of_layer.size())].detach());
    if (--layer->unread > 0) return;
    layer->remade = nullptr;
    layer->remake = nullptr;
  }
  void add_buffer(const std::string& name, const at::Tensor& buffer) {
    if (buffer.device() != Place<Space>::device()) buffer.set_data(buffer.to(Place<Space>::device()));
    if (buffer.numel() == 0) return;
    const auto values = span_of<Space>(buffer);
    list_.add(distx::buffer_ref(plain_name(name), values, {buffer.sizes().begin(), buffer.sizes().end()}));
    buffers_.push_back({values.bytes(), values.size_bytes()});
    kept_.push_back(buffer);
  }

  std::vector<std::shared_ptr<Slot>> slots_;  // in the order of the list
  std::vector<std::shared_ptr<LayerWeights>> layers_;
  std::vector<std::string> wrappers_;  // the beginnings of the names in them
  distx::ParameterList<Space> list_;
  std::vector<distx::Span<std::byte, Space>> buffers_;
  std::vector<at::Tensor> kept_;
};

}  // namespace detail

}  // namespace distx_torch::inline DISTX_ABI
