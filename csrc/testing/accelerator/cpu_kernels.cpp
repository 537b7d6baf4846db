#include "testing/accelerator/cpu_kernels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "testing/accelerator/generator.h"
#include "testing/accelerator/known_results.h"
#include "testing/accelerator/memory.h"
#include "testing/accelerator/stream_tensors.h"
#include "testing/accelerator/streams.h"

namespace remint::testing {
namespace {

using torch::jit::Stack;

// Ops that ask the allocator for scratch, as libraries on a GPU do.
bool wants_workspace(const c10::OperatorHandle& op) {
  constexpr std::array<std::string_view, 6> kNames = {"aten::mm",      "aten::addmm",
                                                      "aten::bmm",     "aten::convolution",
                                                      "aten::baddbmm", "aten::convolution_backward"};
  return std::find(kNames.begin(), kNames.end(), op.schema().name()) != kNames.end();
}

bool is_view(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  const c10::AliasInfo* alias = schema.returns()[0].alias_info();
  return alias != nullptr && !alias->isWrite();
}

// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack arguments)
      : op_(op),
        arguments_(std::move(arguments)),
        tensors_(tensors_of(arguments_)),
        device_(find_device()),
        stream_(current_stream(device_)) {}

  void run(Stack* results) {
    count(&Counts::kernels);
    const c10::DeviceGuard guard(c10::Device(kDeviceType, device_));
    if (is_view(op_.schema())) {
      run_view(results);
      return;
    }
    must_wait_ = op_.hasTag(at::Tag::data_dependent_output) || op_.hasTag(at::Tag::dynamic_output_shape);
    const std::string key = KnownResults::key_of(op_, arguments_);
    make_stream_arguments();
    const KnownResults* known = must_wait_ ? nullptr : KnownResults::find(key);
    if (known != nullptr && !known->must_wait) {
      queue(*known, results);
    } else {
      wait_and_learn(key, results);
    }
  }

 private:
  c10::DeviceIndex find_device() const {
    std::optional<c10::DeviceIndex> found;
    for (const at::Tensor& tensor : tensors_) {
      if (!is_on_device(tensor)) continue;
      TORCH_CHECK(!found || *found == tensor.device().index(), op_.schema().name(),
                  ": expected all tensors to be on the same device, but found at least two devices, ",
                  c10::Device(kDeviceType, *found), " and ", tensor.device());
      found = tensor.device().index();
    }
    if (found) return *found;
    for (const c10::IValue& argument : arguments_) {
      if (argument.isDevice() && argument.toDevice().has_index()) return argument.toDevice().index();
    }
    return current_device();
  }

  void run_view(Stack* results) {
    StreamTensors on_cpu(/*metadata_only=*/true);
    Stack stack;
    for (const c10::IValue& argument : arguments_) {
      stack.push_back(map_tensors(argument, [&](const at::Tensor& tensor) { return on_cpu.of(tensor); }));
    }
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      op_.callBoxed(&stack);
    }
    const at::Tensor& base = tensors_.at(0);
    for (const c10::IValue& value : stack) {
      results->push_back(map_tensors(value, [&](const at::Tensor& view) { return view_like(base, view); }));
    }
  }

  // The arguments as the stream sees them.
  void make_stream_arguments() {
    StreamTensors on_cpu;
    for (std::size_t i = 0; i < arguments_.size(); ++i) {
      c10::IValue argument = map_tensors(arguments_[i], [&](const at::Tensor& tensor) {
        if (!tensor.defined() || is_on_device(tensor)) return on_cpu.of(tensor);
        // A number is copied. Other memory of the host may change as soon as the call has returned.
        if (tensor.dim() == 0) {
          at::Tensor number = tensor.clone();
          // Wrapped numbers decide less about the type of a result.
          const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
          if (wrapped) number.unsafeGetTensorImpl()->set_wrapped_number(true);
          return on_cpu.of(number);
        }
        must_wait_ = true;
        return on_cpu.of(tensor);
      });
      if (argument.isDevice()) argument = c10::Device(c10::DeviceType::CPU);
      stack_.push_back(std::move(argument));
    }
    for (const auto& [impl, storage] : on_cpu.storages()) {
      places_.push_back({storage, storage.mutable_data(), storage.nbytes()});
      nbytes_ += storage.nbytes();
    }
    seed();
  }

  // Gives the kernel a CPU generator that this device's generator seeds.
  void seed() {
    const std::vector<c10::Argument>& declared = op_.schema().arguments();
    int place = -1;
    for (std::size_t i = 0; i < declared.size(); ++i) {
      if (declared[i].type()->str().find("Generator") != std::string::npos) place = static_cast<int>(i);
    }
    if (place < 0 && !op_.hasTag(at::Tag::nondeterministic_seeded)) return;
    at::Generator generator = default_generator(device_);
    if (place >= 0 && stack_[static_cast<std::size_t>(place)].isGenerator()) {
      generator = stack_[static_cast<std::size_t>(place)].toGenerator();
    }
    TORCH_CHECK(generator.device().type() == kDeviceType, op_.schema().name(),
                ": expected a generator of this device, but found one of ", generator.device());
    const std::uint64_t drawn = at::check_generator<TestGenerator>(generator)->draw();
    if (place >= 0) {
      at::Generator cpu = at::make_generator<at::CPUGeneratorImpl>(drawn);
      stack_[static_cast<std::size_t>(place)] = cpu;
    } else {
      // The kernel will draw from the default generator of the CPU, which is the program's, too.
      default_seed_ = drawn;
      must_wait_ = true;
    }
  }

  // What a thread of a stream does. Holds nothing but its own data.
  std::function<void(Stack&)> kernel() const {
    return [op = op_, places = places_, seed = default_seed_](Stack& stack) {
      const at::AutoDispatchBelowADInplaceOrView below;
      if (seed) {
        at::Generator generator = at::detail::getDefaultCPUGenerator();
        const at::Tensor before = generator.get_state();
        generator.set_current_seed(*seed);
        try {
          op.callBoxed(&stack);
        } catch (...) {
          generator.set_state(before);
          throw;
        }
        generator.set_state(before);
      } else {
        op.callBoxed(&stack);
      }
      // A kernel may have given an argument other memory.
      for (const Place& place : places) {
        if (place.address != nullptr && place.storage.data() != place.address) {
          std::memcpy(place.address, place.storage.data(), std::min(place.nbytes, place.storage.nbytes()));
        }
      }
    };
  }

  DeviceNanoseconds cost() const {
    const bool heavy = wants_workspace(op_);
    return 1000 + static_cast<DeviceNanoseconds>(nbytes_) / (heavy ? 1 : 8);
  }

  // The results are known: makes them, and leaves the rest to the stream.
  void queue(const KnownResults& known, Stack* results) {
    std::vector<at::Tensor> fresh;
    for (const KnownResults::Value& value : known.values) {
      std::vector<at::Tensor> list;
      for (const Result& result : value.tensors) list.push_back(make(result, fresh));
      if (value.is_list) {
        results->push_back(std::move(list));
      } else {
        results->push_back(std::move(list.at(0)));
      }
    }
    // Memory that the kernel uses while it runs. It is freed before the kernel has begun, in stream order.
    c10::DataPtr workspace;
    char* scratch = nullptr;
    std::size_t scratch_nbytes = 0;
    if (wants_workspace(op_) && !fresh.empty()) {
      scratch_nbytes = std::max<std::size_t>(1024, fresh[0].storage().nbytes() / 4);
      workspace = c10::GetAllocator(kDeviceType)->allocate(scratch_nbytes);
      scratch = DeviceMemory::get().for_streams(workspace.get());
    }
    StreamTensors on_cpu;
    std::vector<at::Tensor> targets;
    for (const at::Tensor& tensor : fresh) {
      targets.push_back(on_cpu.of(tensor));
      nbytes_ += tensor.storage().nbytes();
    }
    stream_.push(cost(), [kernel = kernel(), stack = std::move(stack_), targets = std::move(targets), &known,
                          scratch, scratch_nbytes, name = op_.schema().name()]() mutable {
      if (scratch != nullptr) std::memset(scratch, 0xa5, scratch_nbytes);
      kernel(stack);
      const std::vector<at::Tensor> made = tensors_of(stack);
      std::size_t next = 0;
      std::size_t place = 0;
      for (const KnownResults::Value& value : known.values) {
        for (const Result& result : value.tensors) {
          if (result.kind == Result::Kind::kFresh) {
            at::Tensor& target = targets[next++];
            TORCH_CHECK(target.sizes() == made.at(place).sizes(), name,
                        " made a result of another size than the last time with the same arguments");
            target.copy_(made[place]);
          }
          ++place;
        }
      }
    });
  }

  at::Tensor make(const Result& result, std::vector<at::Tensor>& fresh) const {
    switch (result.kind) {
      case Result::Kind::kUndefined:
        return {};
      case Result::Kind::kArgument:
        return tensors_[result.argument];
      case Result::Kind::kView:
        return view_like(tensors_[result.argument], result.look);
      case Result::Kind::kFresh:
        break;
    }
    fresh.push_back(
        empty_on_device(device_, result.look.sizes(), result.look.strides(), result.look.scalar_type()));
    if (result.look.is_conj()) fresh.back()._set_conj(true);
    if (result.look.is_neg()) fresh.back()._set_neg(true);
    return fresh.back();
  }

  // The results are not known: runs the op, waits for it, and makes what came out.
  void wait_and_learn(const std::string& key, Stack* results) {
    count(&Counts::waited_kernels);
    const Stack given = stack_;
    std::exception_ptr failed;
    stream_.push(0, [&, run = kernel()] {
      try {
        run(stack_);
      } catch (...) {
        failed = std::current_exception();
      }
    });
    stream_.wait();
    if (failed) std::rethrow_exception(failed);
    const std::vector<at::Tensor> before = tensors_of(given);
    KnownResults known;
    known.must_wait = must_wait_;
    for (std::size_t i = 0; i < before.size(); ++i) known.must_wait |= take_resized(before[i], tensors_[i]);
    for (const c10::IValue& value : stack_) {
      if (!value.isTensor() && !value.isTensorList()) {
        known.must_wait = true;
        results->push_back(value);
        continue;
      }
      KnownResults::Value& learned = known.values.emplace_back();
      learned.is_list = value.isTensorList();
      results->push_back(map_tensors(value, [&](const at::Tensor& made) {
        Result& result = learned.tensors.emplace_back();
        return learn(made, before, result);
      }));
    }
    // Its cost is known now, and the same as that of later calls.
    stream_.push(cost(), [] {});
    if (!known.must_wait) KnownResults::add(key, std::move(known));
  }

  // An `out` that the kernel made larger has its bytes elsewhere. True if it was one.
  bool take_resized(const at::Tensor& written, const at::Tensor& argument) {
    if (!is_on_device(argument) || written.sizes() == argument.sizes()) return false;
    const at::Tensor fresh =
        empty_on_device(device_, written.sizes(), written.strides(), written.scalar_type());
    c10::TensorImpl* impl = argument.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(fresh.storage());
    impl->set_sizes_and_strides(fresh.sizes(), fresh.strides(), 0);
    copy(fresh, written);
    return true;
  }

  at::Tensor learn(const at::Tensor& made, const std::vector<at::Tensor>& before, Result& result) {
    if (!made.defined()) return made;
    TORCH_CHECK_NOT_IMPLEMENTED(made.layout() == at::kStrided && made.has_storage() && !made.is_quantized(),
                                op_.schema().name(), ": remint.testing.accelerator has dense tensors only");
    result.look = look_of(made);
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!is_on_device(tensors_[i]) || !made.is_same(before[i])) continue;
      result.kind = Result::Kind::kArgument;
      result.argument = i;
      return tensors_[i];
    }
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!is_on_device(tensors_[i]) || !made.is_alias_of(before[i])) continue;
      result.kind = Result::Kind::kView;
      result.argument = i;
      return view_like(tensors_[i], made);
    }
    result.kind = Result::Kind::kFresh;
    std::vector<at::Tensor> fresh;
    at::Tensor tensor = make(result, fresh);
    nbytes_ += tensor.storage().nbytes();
    copy(tensor, made);
    return tensor;
  }

  void copy(const at::Tensor& to, const at::Tensor& from) {
    StreamTensors on_cpu;
    stream_.push(0, [target = on_cpu.of(to), from]() mutable {
      const at::AutoDispatchBelowADInplaceOrView below;
      target.copy_(from);
    });
  }

  // Where the bytes of an argument are.
  struct Place {
    c10::Storage storage;
    void* address;
    std::size_t nbytes;
  };

  const c10::OperatorHandle op_;
  const Stack arguments_;
  const std::vector<at::Tensor> tensors_;
  const c10::DeviceIndex device_;
  DeviceStream& stream_;
  bool must_wait_ = false;
  Stack stack_;
  std::vector<Place> places_;
  std::size_t nbytes_ = 0;
  std::optional<std::uint64_t> default_seed_;
};

}  // namespace

void run_cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  Stack arguments = torch::jit::pop(*stack, op.schema().arguments().size());
  Call(op, std::move(arguments)).run(stack);
}

}  // namespace remint::testing
